"""Retention deletes what was dispatched and is old enough, and never anything else, whoever writes meanwhile."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from types import SimpleNamespace
from uuid import UUID

import pytest
from operations_table import as_if_new, belongs_to, dispatched, events, park, read_to_the_end, states, written
from outbox_databases import OpenStore
from outbox_table import event, until, write

from quiesce.errors import SettingsError
from quiesce.outbox.outcome import DISPATCHED, Dead, Retry
from quiesce.postgres import connect, enqueue, open_pool, retention
from quiesce.postgres.driver import Connection
from quiesce.postgres.retention import Pruned, prune


@pytest.fixture
async def outbox(outbox_database: str) -> AsyncIterator[str]:
    async with as_if_new(outbox_database) as dsn:
        yield dsn


async def left(db: Connection) -> set[UUID]:
    return {row[0] for row in await db.fetch("SELECT id FROM outbox_event")}


async def age(db: Connection, seconds: float) -> None:
    """As if all that is there had been written so long ago."""
    await db.execute("UPDATE outbox_event SET created_at = created_at - $1 * interval '1 second'", seconds)


async def test_the_row_store_counts_from_the_dispatch(db: Connection) -> None:
    await belongs_to(db, "row")
    old, fresh, waits = await written(db, 50), await written(db, 30), await written(db, 20)
    await dispatched(db, old, seconds_ago=7200)
    await dispatched(db, fresh, seconds_ago=60)
    retried, dead = await written(db, 2), await written(db, 3)
    await park(db, retried, "retry", mark=True, seconds_ago=9000)
    await park(db, dead, "dead", mark=True, seconds_ago=9000)
    await age(db, 100_000)
    assert await prune(db, 3600, piece=7) == Pruned(50, 0, finished=True)
    assert await left(db) == {*fresh, *waits, *retried, *dead}
    assert await prune(db, 3600) == Pruned(0, 0, finished=True)


async def test_the_log_store_deletes_what_its_cursors_passed_and_nobody_set_aside(db: Connection, outbox: str) -> None:
    await belongs_to(db, "log")
    async with connect(outbox) as slow:
        late = slow.transaction()
        await late.start()
        late_ones = events(3, "late")
        for late_one in late_ones:
            await enqueue(slow, late_one)
        read = await written(db, 100)
        await read_to_the_end(db)
        await late.commit()
    retried, held, dead = read[0], read[1], read[2]
    for one, state in ((retried, "retry"), (held, "held"), (dead, "dead")):
        await park(db, [one], state, seconds_ago=9000)
    unread = await written(db, 20)
    await age(db, 7200)
    fresh = await written(db, 40)
    assert await prune(db, 3600, piece=7) == Pruned(97, 0, finished=True)
    assert await left(db) == {retried, held, dead, *unread, *fresh, *(one.id for one in late_ones)}
    await read_to_the_end(db)
    assert (await prune(db, 3600)).events == 20 + 3
    assert await left(db) == {retried, held, dead, *fresh}


async def test_calls_that_are_cut_short_come_to_every_lane(
    db: Connection, outbox: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await belongs_to(db, "log")
    await written(db, 200)
    await read_to_the_end(db)
    # One piece takes all the time of a call.
    monkeypatch.setattr(retention, "time", SimpleNamespace(monotonic=itertools.count().__next__))
    for _ in range(2000):
        assert not (await prune(db, 0, bound=1.5)).finished
        if not await left(db):
            return
    raise AssertionError(f"{len(await left(db))} events were left")


async def test_an_outbox_that_nobody_has_opened_yet_keeps_everything(db: Connection) -> None:
    ids = await written(db, 20)
    await age(db, 1e6)
    assert await prune(db, 0) == Pruned(0, 0, finished=True)
    assert await left(db) == set(ids)


@pytest.mark.parametrize("kind", ["row", "log"])
async def test_dead_letters_have_a_window_of_their_own(db: Connection, kind: str) -> None:
    await belongs_to(db, kind)
    old, new = await written(db, 5), await written(db, 5)
    await park(db, old, "dead", mark=kind == "row", seconds_ago=7200)
    await park(db, new, "dead", mark=kind == "row")
    await read_to_the_end(db)
    await age(db, 7200)
    assert await prune(db, 60) == Pruned(0, 0, finished=True)
    assert await prune(db, 60, 3600, piece=2) == Pruned(0, 5, finished=True)
    assert set(await states(db)) == set(new)
    assert await left(db) == set(new)


async def test_one_at_a_time_and_the_other_returns_at_once(db: Connection, outbox: str) -> None:
    await belongs_to(db, "log")
    await written(db, 40)
    await read_to_the_end(db)
    async with connect(outbox) as other, other.transaction():
        await other.execute("SELECT pg_try_advisory_xact_lock(1903520115, 'outbox_event'::regclass::oid::int)")
        assert await prune(db, 0) == Pruned()
    assert await prune(db, 0) == Pruned(40, 0, finished=True)


async def test_its_time_is_bounded_and_it_takes_a_pool(db: Connection, outbox: str) -> None:
    await belongs_to(db, "log")
    await written(db, 40)
    await read_to_the_end(db)
    assert await prune(db, 0, bound=0.0) == Pruned()
    pool = open_pool(outbox, max_size=1)
    opened = await pool.open()
    try:
        assert await prune(opened, 0, 0) == Pruned(40, 0, finished=True)
    finally:
        await opened.close()


@pytest.mark.parametrize(("name", "ages"), [("older_than", (-1.0,)), ("dead_older_than", (1.0, float("nan")))])
async def test_a_wrong_age_is_refused(db: Connection, name: str, ages: tuple[float, ...]) -> None:
    with pytest.raises(SettingsError, match=f"prune: {name}"):
        await prune(db, *ages)


async def test_nothing_undispatched_is_deleted_while_the_row_store_works(
    db: Connection, outbox: str, open_store: OpenStore
) -> None:
    """Writers that hold their transactions open, a relay that acks, retries and buries, and a pruner without mercy."""
    await belongs_to(db, "row")
    store = await open_store()
    wrote: set[UUID] = set()
    acked: set[UUID] = set()
    buried: set[UUID] = set()
    over = asyncio.Event()

    async def write_on(number: int) -> None:
        async with connect(outbox) as connection:
            for round_ in range(40):
                async with connection.transaction():
                    some = [event(f"{number}-{round_}-{n}") for n in range(3)]
                    for one in some:
                        await enqueue(connection, one)
                        # Others take positions meanwhile and commit first.
                        await asyncio.sleep(0)
                wrote.update(one.id for one in some)

    async def relay() -> None:
        turn = 0
        while not over.is_set():
            claim = await store.claim(20)
            outcomes = {}
            for one in claim.events:
                turn += 1
                outcomes[one.id] = Dead("no") if turn % 7 == 0 else Retry("later", 0.0) if turn % 5 == 0 else DISPATCHED
            # Known before it is recorded: whatever is gone afterwards must be among these.
            acked.update(key for key, outcome in outcomes.items() if outcome is DISPATCHED)
            buried.update(key for key, outcome in outcomes.items() if isinstance(outcome, Dead))
            await claim.settle(outcomes)

    async def pruner() -> None:
        async with connect(outbox) as connection:
            while not over.is_set():
                await prune(connection, 0, piece=5)
                # Taken before the table is read: what is written meanwhile is in neither.
                before = set(wrote)
                gone = before - await left(connection)
                assert gone <= acked

    async with asyncio.TaskGroup() as group:
        group.create_task(relay())
        group.create_task(pruner())
        writers = [group.create_task(write_on(number)) for number in range(3)]
        await asyncio.wait(writers)
        await until(lambda: everything(db, wrote, buried), within=20.0)
        over.set()
    await prune(db, 0)
    assert await left(db) == buried
    assert wrote == acked | buried


async def everything(db: Connection, wrote: set[UUID], buried: set[UUID]) -> bool:
    return await left(db) == buried and len(wrote) == 3 * 40 * 3


async def test_nothing_unread_is_deleted_while_cursors_move(db: Connection, outbox: str) -> None:
    """The same for the log store's cursors, moved by the rule and by nothing that knows what the writers do."""
    await belongs_to(db, "log")
    wrote: set[UUID] = set()
    passed: set[UUID] = set()
    over = asyncio.Event()

    async def write_on(number: int) -> None:
        async with connect(outbox) as connection:
            for round_ in range(40):
                async with connection.transaction():
                    some = [event(f"{number}-{round_}-{n}") for n in range(3)]
                    for one in some:
                        await enqueue(connection, one)
                        await asyncio.sleep(0)
                wrote.update(one.id for one in some)

    async def reader() -> None:
        async with connect(outbox) as connection:
            while not over.is_set():
                async with connection.transaction(isolation="repeatable_read"):
                    # What this snapshot shows is what the cursor says was read; known before it is recorded.
                    passed.update(await left(connection))
                    await read_to_the_end(connection)

    async def pruner() -> None:
        async with connect(outbox) as connection:
            while not over.is_set():
                await prune(connection, 0, piece=5)
                # Taken before the table is read: what is written meanwhile is in neither.
                before = set(wrote)
                gone = before - await left(connection)
                assert gone <= passed

    async with asyncio.TaskGroup() as group:
        group.create_task(reader())
        group.create_task(pruner())
        writers = [group.create_task(write_on(number)) for number in range(3)]
        await asyncio.wait(writers)
        await until(lambda: everything(db, wrote, set()), within=20.0)
        over.set()
    assert wrote == passed


async def test_deleting_piece_by_piece_keeps_writers_and_the_rest(db: Connection) -> None:
    await belongs_to(db, "row")
    await write(db, *events(30))
    ids = await written(db, 30, "sent")
    await age(db, 100)
    await dispatched(db, ids, seconds_ago=10)
    assert (await prune(db, 1, piece=1)).events == 30
    assert len(await left(db)) == 30
