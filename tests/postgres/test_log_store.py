"""What the log store does that no other does: cursors, lanes, what is set aside, policies, and what it refuses."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest
from outbox_databases import OpenLog, OpenStore
from outbox_table import event, until, write
from wire_proxy import WireProxy

from quiesce.errors import ClaimLost, DatabaseReplaced, SchemaMissing, SettingsError
from quiesce.outbox.event import OutboxEvent
from quiesce.outbox.outcome import DISPATCHED, Dead, Outcome, Retry
from quiesce.outbox.ports import Claim, Settled
from quiesce.postgres import OutboxLog, OutboxRows, connect, enqueue
from quiesce.postgres.driver import Connection
from quiesce.postgres.log_claim import LogClaim
from quiesce.testing.contracts.expectations import within


def ids(claim: Claim) -> list[UUID]:
    return [one.id for one in claim.events]


def acked(claim: Claim) -> dict[UUID, Outcome]:
    return {one.id: DISPATCHED for one in claim.events}


async def parked(db: Connection) -> list[tuple[Any, ...]]:
    rows = await db.fetch("SELECT event_id, state, attempts FROM outbox_parked ORDER BY position")
    return [tuple(row) for row in rows]


async def cursors(db: Connection) -> list[tuple[Any, ...]]:
    rows = await db.fetch("SELECT lane, seen::text, last, until::text, at, dispatched FROM outbox_lane ORDER BY lane")
    return [tuple(row) for row in rows]


async def one_by_one(store: OutboxLog, count: int) -> list[LogClaim]:
    claims = [await store.claim(1) for _ in range(count)]
    assert all(claim.events for claim in claims)
    return claims


async def drain(store: OutboxLog) -> list[UUID]:
    seen: list[UUID] = []
    while (claim := await store.claim(100)).events:
        seen += ids(claim)
        await claim.settle(acked(claim))
    return seen


async def give(store: OutboxLog) -> LogClaim:
    """The next claim that has something."""
    found: list[LogClaim] = []

    async def has() -> bool:
        found.append(await store.claim(100))
        return bool(found[-1].events)

    await until(has)
    return found[-1]


async def test_an_event_is_never_written_to(db: Connection, open_log: OpenLog) -> None:
    store = await open_log()
    written = [event(f"key {n}") for n in range(4)]
    await write(db, *written)
    before = await db.fetch("SELECT ctid, xmin, * FROM outbox_event ORDER BY position")
    claim = await store.claim(10)
    a, b, c, _ = ids(claim)
    await claim.settle({a: DISPATCHED, b: Retry("no topic", 60.0), c: Dead("too large")})
    assert await db.fetch("SELECT ctid, xmin, * FROM outbox_event ORDER BY position") == before


async def test_O13_what_was_claimed_and_not_published_is_untouched(db: Connection, open_log: OpenLog) -> None:
    store = await open_log()
    await write(db, event("k"), event("other"))
    before = await cursors(db)
    claim = await store.claim(10)
    assert len(claim.events) == 2
    closed = await store.close(within(1.0))
    assert closed.forced
    assert await cursors(db) == before
    assert await parked(db) == []
    with pytest.raises(ClaimLost):
        await claim.settle(acked(claim))
    assert await cursors(db) == before


async def test_O14_what_was_settled_is_recorded_when_settle_returns(db: Connection, open_log: OpenLog) -> None:
    store = await open_log()
    for _ in range(3):
        await write(db, *(event(f"key {n}") for n in range(10)))
        claim = await store.claim(100)
        assert await claim.settle(acked(claim)) == Settled(dispatched=10)
        # Nothing is left to a timer or to the close.
        other = await open_log()
        await store.close(within(2.0))
        store = other

        async def owns(store: OutboxLog = store) -> bool:
            assert ids(await store.claim(100)) == []
            return len(store._lanes.held) == 16

        await until(owns)
    assert sum(row[5] for row in await cursors(db)) == 30


async def test_O3_a_stale_owner_records_nothing(db: Connection, open_log: OpenLog) -> None:
    store, written = await open_log(), [event("k"), event("k"), event("k")]
    await write(db, *written)
    claim = await store.claim(2)
    # As if another had taken the lane over while this one did not look.
    await db.execute("UPDATE outbox_lane SET epoch = epoch + 1")
    before = await cursors(db)
    with pytest.raises(ClaimLost, match="another relay has taken it over"):
        await claim.settle({claim.events[0].id: Retry("no topic", 60.0), claim.events[1].id: DISPATCHED})
    assert await cursors(db) == before
    assert await parked(db) == []
    # It asks for its lanes anew, and goes on from what is recorded.
    assert ids(await give(store)) == [one.id for one in written]


async def test_O3_of_a_claim_only_the_lost_lanes_are_lost(db: Connection, open_log: OpenLog) -> None:
    store = await open_log()
    await write(db, *(event(f"key {n}") for n in range(10)))
    claim = await store.claim(100)
    lane = await db.fetchval("SELECT lane FROM outbox_event ORDER BY position LIMIT 1")
    await db.execute("UPDATE outbox_lane SET epoch = epoch + 1 WHERE lane = $1", lane)
    with pytest.raises(ClaimLost, match="1 of"):
        await claim.settle(acked(claim))
    in_lane = {row["id"] for row in await db.fetch("SELECT id FROM outbox_event WHERE lane = $1", lane)}
    assert set(ids(await give(store))) == in_lane


async def test_claims_may_be_settled_in_any_order(db: Connection, open_log: OpenLog) -> None:
    store = await open_log(claims=4)
    await write(db, *(event("k") for _ in range(4)))
    claims = await one_by_one(store, 4)
    settling = [asyncio.ensure_future(claim.settle(acked(claim))) for claim in reversed(claims[1:])]
    await asyncio.wait(settling, timeout=0.05)
    assert not any(one.done() for one in settling), "the cursor moves in order"
    await claims[0].settle(acked(claims[0]))
    async with asyncio.timeout(2):
        assert await asyncio.gather(*settling) == [Settled(dispatched=1)] * 3
    assert await parked(db) == []
    assert await drain(store) == []


async def test_a_claim_that_hangs_pins_no_lane(
    db: Connection, open_log: OpenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await open_log(claims=3)
    monkeypatch.setattr(store._writer, "_patience", 0.05)
    written = [event("k") for _ in range(4)]
    await write(db, *written)
    first, second = await one_by_one(store, 2)
    async with asyncio.timeout(2):
        await second.settle(acked(second))
    # The cursor has moved over the first one, which is set aside and still in its claim's hands.
    assert await parked(db) == [(written[0].id, "retry", 0)]
    third = await store.claim(1)
    assert ids(third) == [written[2].id]
    await first.settle(acked(first))
    await third.settle(acked(third))
    assert await parked(db) == []
    assert await drain(store) == [written[3].id]


async def test_a_claim_that_hung_and_is_given_back_comes_again_first(
    db: Connection, open_log: OpenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await open_log(claims=3)
    monkeypatch.setattr(store._writer, "_patience", 0.05)
    written = [event("k") for _ in range(4)]
    await write(db, *written)
    first, second = await one_by_one(store, 2)
    await second.settle(acked(second))
    await first.release()
    assert ids(await store.claim(10)) == [written[0].id, *(one.id for one in written[2:])]


async def test_what_is_given_back_in_the_middle_is_set_aside_when_the_cursor_passes(
    db: Connection, open_log: OpenLog
) -> None:
    store = await open_log(claims=4)
    written = [event("k") for _ in range(5)]
    await write(db, *written)
    first, second, third = await one_by_one(store, 3)
    await first.settle(acked(first))
    await second.release()
    # Until the third has ended nothing more is read, or it would pass the second.
    assert ids(await store.claim(10)) == []
    await third.settle(acked(third))
    assert await parked(db) == [(written[1].id, "retry", 0)]
    assert await drain(store) == [written[1].id, written[3].id, written[4].id]
    assert await parked(db) == []


async def test_releases_in_any_order_leave_the_cursor_where_it_was(db: Connection, open_log: OpenLog) -> None:
    store = await open_log(claims=4)
    written = [event("k") for _ in range(5)]
    await write(db, *written)
    before = await cursors(db)
    claims = await one_by_one(store, 3)
    for claim in (claims[1], claims[0], claims[2]):
        await claim.release()
    assert await cursors(db) == before
    assert await parked(db) == []
    assert await drain(store) == [one.id for one in written]


async def test_O5_later_ones_of_a_key_in_trouble_are_held_and_come_in_order(db: Connection, open_log: OpenLog) -> None:
    store = await open_log()
    written = [event("k") for _ in range(4)]
    await write(db, *written[:2])
    claim = await store.claim(10)
    # The second is in the same claim and was left out by the relay, behind the first.
    await claim.settle({written[0].id: Retry("no leader", 0.3)})
    await write(db, written[2], event("flows"), written[3])
    for _ in range(3):
        claim = await store.claim(10)
        assert "k" not in {one.aggregate_id for one in claim.events}
        await claim.settle(acked(claim))
    states = [row[1] for row in await parked(db)]
    assert states[0] == "retry"
    assert set(states[1:]) <= {"held"}
    assert await drain_all(store, written) == [one.id for one in written]
    assert await parked(db) == []


async def test_a_retry_whose_event_somebody_deleted_is_forgotten_and_told_once(
    db: Connection, open_log: OpenLog, caplog: pytest.LogCaptureFixture
) -> None:
    store = await open_log()
    await write(db, gone := event("k"))
    await (await store.claim(10)).settle({gone.id: Retry("no leader", 0.01)})
    assert [row[1] for row in await parked(db)] == ["retry"]
    await db.execute("DELETE FROM outbox_event")

    async def forgotten() -> bool:
        # Claims that find nothing, on a lane that has nothing else to record.
        assert not (await store.claim(10)).events
        return not await parked(db)

    await until(forgotten)
    assert [record.getMessage().count(str(gone.id)) for record in caplog.records] == [1]


async def drain_all(store: OutboxLog, written: Sequence[OutboxEvent]) -> list[UUID]:
    seen: list[UUID] = []

    async def all_seen() -> bool:
        seen.extend(await drain(store))
        return len(seen) >= len(written)

    await until(all_seen)
    return seen


async def test_O5_a_new_owner_knows_what_is_held(db: Connection, open_log: OpenLog) -> None:
    store = await open_log()
    written = [event("k") for _ in range(3)]
    await write(db, written[0])
    claim = await store.claim(10)
    await claim.settle({written[0].id: Retry("no leader", 60.0)})
    await store.close(within(2.0))
    await write(db, *written[1:], flows := event("flows"))
    store = await open_log()
    assert ids(await give(store)) == [flows.id]


@pytest.mark.parametrize("dead", ["hold_key", {"orders": "hold_key"}])
async def test_O6_a_dead_letter_may_hold_its_key(db: Connection, open_log: OpenLog, dead: Any) -> None:
    store = await open_log(dead=dead)
    written = [event("k") for _ in range(3)]
    await write(db, *written[:2])
    claim = await store.claim(1)
    await claim.settle({written[0].id: Dead("too large")})
    await write(db, written[2], flows := event("flows"))
    assert await drain(store) == [flows.id]
    # A new owner holds it too.
    await store.close(within(2.0))
    store = await open_log(dead=dead)
    assert await drain(store) == []
    assert [row[1:] for row in await parked(db)] == [("dead", 1), ("held", 0), ("held", 0)]
    # An operator discards the letter: what it held goes on, in order.
    await db.execute("DELETE FROM outbox_parked WHERE state = 'dead'")
    assert await drain_all(store, written[1:]) == [one.id for one in written[1:]]


async def test_a_letter_that_is_redriven_goes_before_what_it_held(db: Connection, open_log: OpenLog) -> None:
    store = await open_log(dead="hold_key")
    written = [event("k") for _ in range(3)]
    await write(db, *written)
    claim = await store.claim(1)
    await claim.settle({written[0].id: Dead("too large")})
    assert await drain(store) == []
    await db.execute("UPDATE outbox_parked SET state = 'retry', next_at = now() WHERE state = 'dead'")
    assert await drain_all(store, written) == [one.id for one in written]


async def test_a_letter_that_is_redriven_is_seen(db: Connection, open_log: OpenLog) -> None:
    store = await open_log()
    written = [event("k"), event("k")]
    await write(db, *written)
    claim = await store.claim(10)
    await claim.settle({written[0].id: Dead("too large"), written[1].id: DISPATCHED})
    await db.execute("UPDATE outbox_parked SET state = 'retry', next_at = now(), attempts = 0")
    claim = await give(store)
    assert [(one.id, one.attempts) for one in claim.events] == [(written[0].id, 0)]
    await claim.settle(acked(claim))
    assert await parked(db) == []


async def test_above_max_parked_a_lane_stops_and_says_so(
    db: Connection, open_log: OpenLog, caplog: pytest.LogCaptureFixture
) -> None:
    store, written = await open_log(max_parked=1), [event("k")]
    await write(db, *written)
    claim = await store.claim(10)
    await claim.settle({one.id: Retry("no leader", 60.0) for one in claim.events})
    await write(db, waits := event("k"), flows := event("other lane"))
    assert await drain(store) == [flows.id]
    assert await drain(store) == []
    told = [line for line in caplog.records if "max_parked" in line.message]
    assert [line.levelno for line in told] == [logging.ERROR]
    assert len(await parked(db)) == 1
    # What is set aside goes on, and then the lane does.
    await db.execute("UPDATE outbox_parked SET next_at = now() WHERE state = 'retry'")
    seen = await drain_all(store, [*written, waits])
    assert seen == [one.id for one in [*written, waits]]


async def test_a_pause_is_kept_and_ended(db: Connection, open_log: OpenLog) -> None:
    store = await open_log()
    await write(db, event())
    await db.execute("UPDATE outbox_control SET paused_at = now(), paused_by = 'somebody'")

    async def paused() -> bool:
        claim = await store.claim(10)
        await claim.release()
        return not claim.events

    await until(paused)
    await db.execute("UPDATE outbox_control SET paused_at = NULL, paused_by = NULL")
    await give(store)


async def test_one_kind_of_store_runs_a_table(outbox: str, open_log: OpenLog, open_store: OpenStore) -> None:
    log = await open_log()
    with pytest.raises(SettingsError, match="got OutboxRows, takes OutboxLog"):
        await open_store()
    await log.close(within(2.0))
    with pytest.raises(SettingsError, match="got OutboxRows, takes OutboxLog"):
        await OutboxRows(outbox).open()


async def test_a_table_run_by_rows_refuses_the_log(open_log: OpenLog, open_store: OpenStore) -> None:
    await open_store()
    with pytest.raises(SettingsError, match="got OutboxLog, takes OutboxRows"):
        await open_log()


async def test_marks_of_row_stores_are_not_sent_again(db: Connection, open_log: OpenLog) -> None:
    # As after an update of the package, when nobody has said yet which kind of store it is.
    await write(db, event("k"))
    await db.execute("UPDATE outbox_event SET dispatched_at = now()")
    with pytest.raises(SettingsError, match="marked by row stores"):
        await open_log()
    assert await db.fetchval("SELECT store FROM outbox_control") is None


@pytest.mark.parametrize(
    ("column", "number", "told"),
    [("system_identifier", 7, "another server"), ("timeline", 4711, "a failover")],
)
async def test_O28_another_database_is_noticed(
    db: Connection, open_log: OpenLog, column: str, number: int, told: str
) -> None:
    store = await open_log()
    await write(db, event("k"))
    await store.close(within(2.0))
    # As after a restore, or a promotion, with the tables as they were.
    await db.execute(f"UPDATE outbox_control SET {column} = $1", number)
    with pytest.raises(DatabaseReplaced, match=f"{told}.*quiesce outbox rebase") as raised:
        await open_log()
    assert not raised.value.retryable


async def test_O28_cursors_ahead_of_the_server_are_noticed_at_a_reconnect(db: Connection, open_log: OpenLog) -> None:
    store = await open_log()
    await write(db, event("k"))
    claim = await store.claim(10)
    await claim.settle(acked(claim))
    # As if the server had gone back to an hour ago while we were not connected.
    await db.execute("UPDATE outbox_lane SET seen = '900000000:900000000:' WHERE last > 0")
    await db.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )

    async def told() -> bool:
        with pytest.raises(DatabaseReplaced, match="quiesce outbox rebase"):
            await store.claim(10)
        return True

    await until(told)


async def test_O28_lost_cursors_are_not_made_anew(db: Connection, open_log: OpenLog) -> None:
    async with db.transaction():
        await db.execute("CREATE TEMP TABLE kept ON COMMIT DROP AS SELECT * FROM outbox_lane WHERE lane = 3")
    await db.execute("DELETE FROM outbox_lane WHERE lane = 3")
    try:
        with pytest.raises(SchemaMissing, match="15 rows, takes 16"):
            await open_log()
    finally:
        await db.execute("INSERT INTO outbox_lane (lane) VALUES (3)")


async def test_O2_a_transaction_that_stays_open_stalls_nobody(outbox: str, db: Connection, open_log: OpenLog) -> None:
    store = await open_log()
    async with connect(outbox) as other, other.transaction():
        await other.execute("SELECT pg_current_xact_id()")
        for _ in range(5):
            await write(db, one := event("k"))
            claim = await store.claim(10)
            assert ids(claim) == [one.id]
            await claim.settle(acked(claim))


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_line_cut_in_a_settle_doubles_nothing(
    outbox: str, db: Connection, open_log: OpenLog, when: Any
) -> None:
    async with WireProxy(outbox) as proxy:
        store = await open_log(proxy.dsn)
        await write(db, *(event(f"key {n}") for n in range(6)))
        claim = await store.claim(10)
        a, b, *rest = ids(claim)
        proxy.cut_at(b"UPDATE outbox_lane", when)
        outcomes: dict[UUID, Outcome] = {a: Retry("no leader", 60.0), b: Dead("too large")}
        settled = await claim.settle(outcomes | dict.fromkeys(rest, DISPATCHED))
        assert settled == Settled(dispatched=4, retried=1, dead=1)
        assert sorted(row[1:] for row in await parked(db)) == [("dead", 1), ("retry", 1)]
        assert sum(row[5] for row in await cursors(db)) == 4
        assert await drain(store) == []
        await store.close(within(2.0))


async def test_a_database_that_is_gone_for_a_moment_doubles_nothing(
    outbox: str, db: Connection, open_log: OpenLog
) -> None:
    store = await open_log()
    await write(db, *(event(f"key {n}") for n in range(6)))
    claim = await store.claim(3)
    await db.execute(
        "SELECT pg_terminate_backend(pid, 2000) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    # The lanes are lost with their connection, but nobody else has taken them. It may not know that yet.
    early = await store.claim(10)
    assert set(ids(early)).isdisjoint(ids(claim))
    await early.release()
    assert await claim.settle(acked(claim)) == Settled(dispatched=3)
    rest: list[UUID] = []

    async def drained() -> bool:
        rest.extend(await drain(store))
        return len(rest) >= 3

    await until(drained)
    assert len(rest) == 3
    assert not set(rest) & set(ids(claim))


async def test_a_settle_that_is_cancelled_is_recorded_all_the_same(db: Connection, open_log: OpenLog) -> None:
    store = await open_log()
    await write(db, *(event("k") for _ in range(3)))
    claim = await store.claim(10)
    settling = asyncio.ensure_future(claim.settle(acked(claim)))
    await asyncio.sleep(0)
    settling.cancel()
    await asyncio.wait({settling}, timeout=1.0)
    assert settling.cancelled()
    closed = await store.close(within(2.0))
    assert not closed.forced
    assert sum(row[5] for row in await cursors(db)) == 3


async def test_O20_three_connections_of_its_own(db: Connection, open_log: OpenLog) -> None:
    store = await open_log(claims=4)
    await write(db, *(event(f"key {n}") for n in range(12)))
    claims = [await store.claim(3) for _ in range(4)]
    await asyncio.gather(*(claim.settle(acked(claim)) for claim in claims), store.claim(1), store.claim(1))
    mine = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    assert await db.fetchval(mine) <= 3


async def test_a_claim_ends_early_where_its_events_are_large(db: Connection, open_log: OpenLog) -> None:
    written = [event("k", b"x" * size) for size in (10, 2000, 10, 5000, 10)]
    written = [event("k", None), *written, event("k", None)]
    await write(db, *written)
    store = await open_log(max_claim_bytes=2030)
    seen = []
    while (claim := await store.claim(100)).events:
        assert sum(len(one.payload or b"") for one in claim.events) <= 2030 or len(claim.events) == 1
        seen += ids(claim)
        await claim.settle(acked(claim))
    assert seen == [one.id for one in written]


async def test_a_backlog_is_a_page_of_one_lane(db: Connection, open_log: OpenLog) -> None:
    store = await open_log()
    await write(db, *(event(f"key {n % 40}") for n in range(400)))
    lanes: dict[UUID, int] = {row["id"]: row["lane"] for row in await db.fetch("SELECT id, lane FROM outbox_event")}
    of_claims = []
    while (claim := await store.claim(5)).events:
        of_claims.append({lanes[one] for one in ids(claim)})
        await claim.settle(acked(claim))
    # Some pages stand across the end of a lane.
    assert sum(len(of_claim) == 1 for of_claim in of_claims) > len(of_claims) / 2
    first = [next(iter(of_claim)) for of_claim in of_claims[:10]]
    assert len(set(first)) > 5, "and the next page is of another lane"


async def test_what_commits_after_all_was_read_is_read(outbox: str, db: Connection, open_log: OpenLog) -> None:
    store = await open_log()
    async with connect(outbox) as other, other.transaction():
        late = await enqueue(other, event("late"))
        await write(db, event("k"))
        assert len(await drain(store)) == 1
    assert await drain(store) == [late]


@pytest.mark.parametrize(
    "wrong",
    [
        {"claims": 0},
        {"statement_timeout": float("nan")},
        {"max_claim_bytes": 0},
        {"max_parked": 0},
        {"takeover_after": 0.0},
        {"dead": "burn"},
        {"dead": {"orders": "burn"}},
    ],
)
def test_wrong_settings_are_told(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        OutboxLog("postgresql://nowhere/db", **wrong)
