"""Dead letters are listed, redriven, deleted by event, key, topic and time; pauses hold; the audit has all of it."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from operations_table import as_if_new, belongs_to, park, read_to_the_end, states, written
from outbox_databases import OpenLog, OpenStore
from outbox_table import until

from quiesce.errors import SettingsError
from quiesce.outbox.outcome import DISPATCHED, Dead
from quiesce.outbox.ports import Claim
from quiesce.postgres import OutboxLog, OutboxRows, connect
from quiesce.postgres.dead_letters import Selection, count, dead_letters, purge
from quiesce.postgres.driver import Connection
from quiesce.postgres.pausing import pause, paused, resume
from quiesce.postgres.redrive import redrive

EVERYTHING = Selection()
KINDS = ["row", "log"]


@pytest.fixture
async def outbox(outbox_database: str) -> AsyncIterator[str]:
    async with as_if_new(outbox_database) as dsn:
        yield dsn


async def audit(db: Connection) -> list[tuple[str, str, int, Mapping[str, Any]]]:
    rows = await db.fetch("SELECT verb, said_by, events, detail::text FROM outbox_audit ORDER BY id")
    return [(row[0], row[1], row[2], json.loads(row[3])) for row in rows]


async def redriven(db: Connection, selection: Selection, **settings: Any) -> int:
    return sum([done async for done in redrive(db, selection, said_by="me", **settings)])


async def letters(db: Connection, kind: str) -> list[UUID]:
    """Ten of topic `orders` that are three hours old, five new ones of `bills`, and five events that wait."""
    await belongs_to(db, kind)
    old, new = await written(db, 10, "old"), await written(db, 5, "new", "bills")
    await park(db, old, "dead", mark=kind == "row", seconds_ago=3 * 3600, reason="too large")
    await park(db, new, "dead", mark=kind == "row")
    await written(db, 5, "waits")
    return old + new


async def chosen(db: Connection, selection: Selection) -> list[UUID]:
    return [one.id for one in await dead_letters(db, selection, limit=100)]


@pytest.mark.parametrize("kind", KINDS)
async def test_they_are_found_by_event_key_topic_and_time(db: Connection, kind: str) -> None:
    ids = await letters(db, kind)
    now = await db.fetchval("SELECT now()")
    hour_ago = await db.fetchval("SELECT now() - interval '1 hour'")
    assert await chosen(db, EVERYTHING) == ids
    assert await count(db, EVERYTHING) == 15
    assert await chosen(db, Selection(events=(ids[3], ids[12]))) == [ids[3], ids[12]]
    assert await chosen(db, Selection(keys=("old4", "new0"))) == [ids[4], ids[10]]
    assert await chosen(db, Selection(topics=("bills",))) == ids[10:]
    assert await chosen(db, Selection(since=hour_ago)) == ids[10:]
    assert await chosen(db, Selection(until=hour_ago)) == ids[:10]
    assert await chosen(db, Selection(older_than=7200.0)) == ids[:10]
    assert await chosen(db, Selection(topics=("bills",), until=hour_ago)) == []
    assert await chosen(db, Selection(since=hour_ago, until=now, keys=("new1",))) == [ids[11]]
    first = (await dead_letters(db, EVERYTHING, limit=1))[0]
    assert (first.state, first.reason, first.payload, first.attempts) == ("dead", "too large", None, 3)


@pytest.mark.parametrize("kind", KINDS)
async def test_redrive_makes_them_due_once_and_counts_it(db: Connection, kind: str) -> None:
    ids = await letters(db, kind)
    assert await redriven(db, Selection(topics=("orders",)), piece=3) == 10
    now = await states(db)
    assert {now[one] for one in ids[:10]} == {"retry"}
    assert {now[one] for one in ids[10:]} == {"dead"}
    assert await db.fetchval("SELECT count(*) FROM outbox_parked WHERE next_at <= clock_timestamp()") == 10
    assert await db.fetchval("SELECT count(*) FROM outbox_event WHERE dead_at IS NOT NULL") == (
        5 if kind == "row" else 0
    )
    assert await redriven(db, Selection(topics=("orders",))) == 0
    assert await audit(db) == [
        ("redrive", "me", 10, {"topics": ["orders"]}),
        ("redrive", "me", 0, {"topics": ["orders"]}),
    ]


async def test_the_row_store_sends_what_was_redriven(db: Connection, open_store: OpenStore) -> None:
    await belongs_to(db, "row")
    ids = await written(db, 3)
    store = await open_store()
    claim = await store.claim(10)
    await claim.settle({one: Dead("too large") for one in ids})
    assert [one.id for one in (await store.claim(10)).events] == []
    assert await redriven(db, Selection(keys=("k1",))) == 1
    end = time.monotonic() + 15
    while not (claim := await store.claim(10)).events:
        # The floor: one claim in ten seconds begins at the bottom.
        assert time.monotonic() < end
        await asyncio.sleep(0.05)
    assert [(one.id, one.attempts) for one in claim.events] == [(ids[1], 0)]
    await claim.settle({ids[1]: DISPATCHED})
    assert sorted((await states(db)).values()) == ["dead", "dead"]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_letter_is_as_old_as_its_death_and_not_as_its_first_try(
    db: Connection, kind: str, open_store: OpenStore, open_log: OpenLog
) -> None:
    await belongs_to(db, kind)
    ids = await written(db, 3)
    if kind == "log":
        await read_to_the_end(db)
    await park(db, ids, "retry", mark=kind == "row", seconds_ago=3 * 3600)
    store = await (open_store() if kind == "row" else open_log())
    for _ in range(2):
        claimed: list[Claim] = []

        async def due(store: OutboxRows | OutboxLog = store, claimed: list[Claim] = claimed) -> bool:
            claimed.append(await store.claim(10))
            return bool(claimed[-1].events)

        await until(due, within=15.0)
        claim = claimed[-1]
        gone = [one.id for one in claim.events]
        await claim.settle(dict.fromkeys(gone, Dead("too large")))
        hour_ago = await db.fetchval("SELECT now() - interval '1 hour'")
        assert set(gone) <= set(await chosen(db, Selection(since=hour_ago)))
        assert await chosen(db, Selection(older_than=3600.0)) == []
        # As after a month, when somebody has another try.
        await db.execute("UPDATE outbox_parked SET created_at = now() - interval '3 hours'")
        await redriven(db, EVERYTHING)


async def test_redrive_keeps_its_rate(db: Connection) -> None:
    await belongs_to(db, "log")
    await park(db, await written(db, 12), "dead")
    began = time.monotonic()
    pieces = [done async for done in redrive(db, EVERYTHING, said_by="me", rate=10.0)]
    assert pieces == [10, 2]
    assert time.monotonic() - began >= 1.0
    with pytest.raises(SettingsError, match="rate: got 0"):
        await redriven(db, EVERYTHING, rate=0.0)


async def test_what_dies_again_meanwhile_is_not_redriven_for_ever(db: Connection, outbox: str) -> None:
    await belongs_to(db, "log")
    ids = await written(db, 6)
    await park(db, ids, "dead")
    async with connect(outbox) as beside:
        total = 0
        async for done in redrive(db, EVERYTHING, said_by="me", piece=2):
            total += done
            # They die again, as with the retry that a relay has made of them.
            await beside.execute("UPDATE outbox_parked SET state = 'dead', next_at = NULL")
    assert total == 6


async def test_cut_short_the_audit_says_how_far_it_came(db: Connection) -> None:
    await belongs_to(db, "log")
    await park(db, await written(db, 6), "dead")
    async for _ in redrive(db, EVERYTHING, said_by="me", piece=2):
        break
    assert [entry[2] for entry in await audit(db)] == [2]
    assert sorted((await states(db)).values()) == ["dead"] * 4 + ["retry"] * 2


async def test_two_redrives_at_once_share_the_work(db: Connection, outbox: str) -> None:
    await belongs_to(db, "log")
    await park(db, await written(db, 200), "dead")
    async with connect(outbox) as other:
        both = await asyncio.gather(redriven(db, EVERYTHING, piece=10), redriven(other, EVERYTHING, piece=10))
    assert sum(both) == 200


@pytest.mark.parametrize("kind", KINDS)
async def test_purge_deletes_letters_with_their_events_and_nothing_else(db: Connection, kind: str) -> None:
    ids = await letters(db, kind)
    old = Selection(older_than=3600.0)
    assert await purge(db, old, said_by="me", dry_run=True) == 10
    assert await audit(db) == []
    assert await purge(db, old, said_by="me", piece=4) == 10
    assert await chosen(db, EVERYTHING) == ids[10:]
    assert await db.fetchval("SELECT count(*) FROM outbox_event") == 10
    assert await audit(db) == [("purge", "me", 10, {"older_than_seconds": 3600.0})]


async def test_purge_frees_what_was_held_behind_a_deleted_letter(db: Connection) -> None:
    await belongs_to(db, "log")
    first, second, third = await written(db, 1), await written(db, 1), await written(db, 1)
    elsewhere = await written(db, 1, "other")
    await park(db, first + elsewhere, "dead", seconds_ago=100)
    await park(db, second + third, "held")
    await purge(db, Selection(keys=("k0",)), said_by="me")
    assert await states(db) == {second[0]: "retry", third[0]: "held", elsewhere[0]: "dead"}
    # Behind a dead one that stays, the key stays held.
    await park(db, await written(db, 1, "other"), "held")
    fourth = await written(db, 1, "other")
    await park(db, fourth, "dead", seconds_ago=200)
    await purge(db, Selection(events=(fourth[0],)), said_by="me")
    assert sorted((await states(db)).values()) == ["dead", "held", "held", "retry"]


async def test_a_letter_whose_event_somebody_deleted_can_be_purged_and_not_redriven(db: Connection) -> None:
    ids = await letters(db, "log")
    await db.execute("DELETE FROM outbox_event WHERE id = $1", ids[0])
    first = (await dead_letters(db, EVERYTHING))[0]
    assert (first.id, first.topic, first.created_at) == (ids[0], "(its event is gone)", None)
    assert await redriven(db, EVERYTHING) == 14
    assert await purge(db, EVERYTHING, said_by="me") == 1
    assert ids[0] not in await states(db)


async def test_a_pause_keeps_its_author_until_it_ends(db: Connection) -> None:
    assert await pause(db, said_by="anna", why="brokers move", dry_run=True)
    assert await paused(db) is None
    assert await pause(db, said_by="anna", why="brokers move")
    assert not await pause(db, said_by="ben")
    held = await paused(db)
    assert held is not None
    assert (held.by, held.why) == ("anna", "brokers move")
    assert await resume(db, said_by="ben", dry_run=True) == held
    assert await resume(db, said_by="ben") == held
    assert await resume(db, said_by="ben") is None
    assert [(verb, by) for verb, by, _, _ in await audit(db)] == [("pause", "anna"), ("resume", "ben")]


async def test_the_audit_knows_the_database_user_whoever_is_named(db: Connection) -> None:
    await pause(db, said_by="anna")
    who = await db.fetchval("SELECT who FROM outbox_audit")
    assert who == await db.fetchval("SELECT session_user")


async def test_a_failed_piece_leaves_nothing_half_done(db: Connection) -> None:
    await belongs_to(db, "log")
    await park(db, await written(db, 4), "dead")
    await db.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$;"
        "CREATE TRIGGER refuse BEFORE DELETE ON outbox_event FOR EACH ROW EXECUTE FUNCTION refuse()"
    )
    with pytest.raises(asyncpg.RaiseError):
        await purge(db, EVERYTHING, said_by="me")
    await db.execute("DROP FUNCTION refuse() CASCADE")
    assert await count(db, EVERYTHING) == 4
    assert await audit(db) == []
