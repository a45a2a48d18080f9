"""`status` and `peek`: what waits, exactly up to a cap, in both stores."""

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from operations_table import as_if_new, belongs_to, dispatched, events, park, read_to_the_end, written
from outbox_table import write

from quiesce.postgres import connect
from quiesce.postgres import waiting as sql
from quiesce.postgres.driver import Connection
from quiesce.postgres.outbox_status import Count, status
from quiesce.postgres.pausing import pause
from quiesce.postgres.peeking import peek

KINDS = ["row", "log"]


@pytest.fixture
async def outbox(outbox_database: str) -> AsyncIterator[str]:
    async with as_if_new(outbox_database) as dsn:
        yield dsn


@pytest.mark.parametrize("kind", [None, *KINDS])
async def test_an_empty_outbox(db: Connection, kind: str | None) -> None:
    if kind:
        await belongs_to(db, kind)
    told = await status(db)
    assert (told.store, told.waiting, told.oldest, told.dispatched, told.paused) == (
        kind,
        Count(0),
        None,
        Count(0),
        None,
    )
    assert len(told.lanes) == (16 if kind == "log" else 0)


async def test_the_row_store_counts_what_its_columns_say(db: Connection) -> None:
    await belongs_to(db, "row")
    ids = await written(db, 10)
    await dispatched(db, ids[:4])
    await park(db, ids[4:5], "dead", mark=True)
    await park(db, ids[5:7], "retry", mark=True)
    told = await status(db)
    assert (told.waiting, told.dispatched, told.parked) == (Count(5), Count(4), {"retry": 2, "held": 0, "dead": 1})
    assert told.oldest is not None
    assert 0 <= told.oldest < 60


async def test_the_log_store_counts_what_its_cursors_have_not_read(db: Connection, outbox: str) -> None:
    await belongs_to(db, "log")
    async with connect(outbox) as slow:
        late = slow.transaction()
        await late.start()
        await write_in(slow, 3, "late")
        ids = await written(db, 20)
        await read_to_the_end(db)
        await park(db, ids[:2], "retry")
        await park(db, ids[2:3], "held")
        await park(db, ids[3:4], "dead")
        assert (await status(db)).waiting == Count(3)
        await late.commit()
    await written(db, 7, "new")
    told = await status(db)
    assert (told.waiting, told.dispatched) == (Count(3 + 3 + 7), Count(20))
    assert told.parked == {"retry": 2, "held": 1, "dead": 1}
    assert sum(lane.waiting.events for lane in told.lanes) == 10
    seen = await peek(db, limit=100)
    assert [one.key[:-1] for one in seen].count("late") == 3
    assert len(seen) == 13
    assert [one.state for one in seen].count("waiting") == 10
    assert all((one.parked_at is None) is (one.state == "waiting") for one in seen)
    assert len(await peek(db, key="late1")) == 1


async def write_in(connection: Connection, count: int, key: str) -> None:
    from quiesce.postgres import enqueue

    for one in events(count, key):
        await enqueue(connection, one)


async def test_under_an_unfinished_page_of_late_events_only_the_rest_waits(db: Connection) -> None:
    await belongs_to(db, "log")
    await written(db, 40)
    await db.execute(
        "UPDATE outbox_lane SET last = (SELECT max(position) FROM outbox_event), seen = '5:5:', "
        "until = pg_current_snapshot(), at = (SELECT min(position) + 9 FROM outbox_event)"
    )
    assert (await status(db)).waiting == Count(30)
    assert len(await peek(db, limit=100)) == 30


@pytest.mark.parametrize("kind", KINDS)
async def test_beyond_the_cap_it_estimates_and_says_so(db: Connection, kind: str) -> None:
    await belongs_to(db, kind)
    await written(db, 2000)
    exact = await status(db)
    assert exact.waiting == Count(2000)
    told = await status(db, count_to=320)
    assert not told.waiting.exact
    assert str(told.waiting).startswith("about ")
    assert 1500 < told.waiting.events < 2500
    await dispatched(db, await written(db, 500, "sent"))
    await db.execute("ANALYZE outbox_event")
    if kind == "row":
        counted = await status(db, count_to=100)
        assert (counted.dispatched, counted.waiting.exact) == (Count(counted.dispatched.events, exact=False), False)
        assert counted.dispatched.events > 100


async def test_one_hot_lane_is_counted_up_to_the_cap_of_all(db: Connection) -> None:
    await belongs_to(db, "log")
    await written(db, 64)
    hot = "INSERT INTO outbox_event (id, aggregate_id, topic, type) SELECT gen_random_uuid(), $1, 'orders', 'T' FROM "
    await db.execute(f"{hot} generate_series(1, 900)", "hot")
    await db.execute(f"{hot} generate_series(1, 300)", "warm")
    assert (await status(db, count_to=1300)).waiting == Count(1264)
    told = await status(db, count_to=1000)
    assert not told.waiting.exact
    # All that it can count, and no lane is estimated that has few.
    assert sum(not lane.waiting.exact for lane in told.lanes) == 1
    assert all(lane.waiting.exact for lane in told.lanes if lane.waiting.events < 200)


async def test_more_late_events_than_are_counted_make_no_number_of_their_own(db: Connection, outbox: str) -> None:
    """As when a large transaction commits while smaller ones were read behind it."""
    await belongs_to(db, "log")
    async with connect(outbox) as slow:
        late = slow.transaction()
        await late.start()
        await write_in(slow, 300, "late")
        await written(db, 20)
        await read_to_the_end(db)
        await late.commit()
    told = await status(db, count_to=100)
    assert not told.waiting.exact
    assert 100 <= told.waiting.events <= 300
    assert (await status(db, count_to=400)).waiting == Count(300)


async def test_a_pause_and_the_database_clock_are_told(db: Connection) -> None:
    await pause(db, said_by="me", why="brokers move")
    told = await status(db)
    assert told.paused is not None
    assert (told.paused.by, told.paused.why) == ("me", "brokers move")
    assert told.paused.at <= told.at


@pytest.mark.parametrize("kind", KINDS)
async def test_peek_filters_and_shows_payloads_only_on_demand(db: Connection, kind: str) -> None:
    await belongs_to(db, kind)
    await write(db, *events(5, "a", "orders", b"secret"), *events(5, "b", "bills"))
    assert [one.key for one in await peek(db, topic="bills", limit=3)] == ["b0", "b1", "b2"]
    (one,) = await peek(db, key="a1")
    assert (one.key, one.topic, one.state, one.size, one.payload, one.headers) == (
        "a1",
        "orders",
        "waiting",
        6,
        None,
        None,
    )
    (one,) = await peek(db, key="a1", payloads=True)
    assert (one.payload, one.headers) == (b"secret", '{"secret": "s3"}')
    assert {found.key for found in await peek(db, lane=one.lane)} >= {"a1"}
    assert {found.lane for found in await peek(db, lane=one.lane)} == {one.lane}


def scans(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if plan.get("Relation Name") == "outbox_event" or "outbox_event" in plan.get("Index Name", ""):
        yield plan
    for child in plan.get("Plans", []):
        yield from scans(child)


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize(
    ("statement", "types", "arguments"),
    [
        (sql.LOG_COUNT, "(bigint, text)", "100, '{0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15}'"),
        (sql.LOG_PEEK, "(text, text, smallint, bigint, boolean)", "NULL, NULL, NULL, 20, false"),
        (sql.LOG_PEEK, "(text, text, smallint, bigint, boolean)", "'late1', NULL, NULL, 20, false"),
    ],
    ids=["count", "peek", "peek at a key"],
)
async def test_what_was_read_costs_nothing(
    db: Connection, outbox: str, mode: str, statement: str, types: str, arguments: str
) -> None:
    await belongs_to(db, "log")
    async with connect(outbox) as slow:
        late = slow.transaction()
        await late.start()
        await write_in(slow, 3, "late")
        await db.execute(
            "INSERT INTO outbox_event (id, aggregate_id, topic, type) "
            "SELECT gen_random_uuid(), 'key ' || n, 'orders', 'T' FROM generate_series(1, 20000) AS n"
        )
        await read_to_the_end(db)
        await late.commit()
    await written(db, 30, "new")
    # What tests before have left in the tables must not decide.
    await db.execute("ANALYZE outbox_event, outbox_parked, outbox_lane")
    async with db.transaction():
        await db.execute(f"SET LOCAL plan_cache_mode = {mode}; PREPARE explained {types} AS {statement}")
        text = await db.fetchval(
            f"EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, FORMAT JSON) EXECUTE explained ({arguments})"
        )
        await db.execute("DEALLOCATE explained")
    walked = sum(
        (scan["Actual Rows"] + scan.get("Rows Removed by Filter", 0)) * scan["Actual Loops"]
        for scan in scans(json.loads(text)[0]["Plan"])
    )
    assert 0 < walked < 500, f"{walked} rows were walked"
