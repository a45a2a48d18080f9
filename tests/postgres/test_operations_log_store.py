"""What operators do is seen by stores that run: pauses, redriven and purged letters, rebased cursors, retention."""

import asyncio
import logging
import subprocess
import time
from collections.abc import Callable
from functools import partial
from uuid import UUID

import pytest
from operations_table import read_to_the_end, states, written
from outbox_databases import OpenLog, OpenStore
from outbox_table import event, until, write

from quiesce.errors import ClaimLost, DatabaseReplaced, Unavailable
from quiesce.lifecycle.deadline import Deadline
from quiesce.outbox.outcome import DISPATCHED, Dead, Outcome, Retry
from quiesce.postgres import OutboxLog, OutboxRows, connect, enqueue, schema
from quiesce.postgres.dead_letters import Selection, purge
from quiesce.postgres.driver import Connection
from quiesce.postgres.outbox_status import status
from quiesce.postgres.pausing import pause, resume
from quiesce.postgres.peeking import peek
from quiesce.postgres.rebase import rebase
from quiesce.postgres.redrive import redrive
from quiesce.postgres.retention import prune
from quiesce.testing.postgres import LocalPostgres
from quiesce.testing.postgres_programs import installed

Judge = Callable[[UUID], Outcome]


async def take(store: OutboxLog | OutboxRows, judge: Judge = lambda _: DISPATCHED) -> list[UUID]:
    """One claim, settled."""
    claim = await store.claim(100)
    await claim.settle({one.id: judge(one.id) for one in claim.events})
    return [one.id for one in claim.events]


async def take_all(store: OutboxLog | OutboxRows, count: int, judge: Judge = lambda _: DISPATCHED) -> list[UUID]:
    taken: list[UUID] = []

    async def enough() -> bool:
        taken.extend(await take(store, judge))
        return len(taken) >= count

    await until(enough, within=15.0)
    return taken


@pytest.mark.parametrize("kind", ["row", "log"])
async def test_a_pause_stops_claims_and_not_writers(
    db: Connection, open_log: OpenLog, open_store: OpenStore, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "quiesce.postgres")
    store = await (open_log() if kind == "log" else open_store())
    first = await written(db, 3)
    assert sorted(await take_all(store, 3)) == sorted(first)
    await pause(db, said_by="me")

    async def noticed() -> bool:
        return await take(store) == [] and (kind == "row" or "paused by an operator" in caplog.text)

    # The log store looks once in a while.
    await until(noticed, within=10.0)
    more = await written(db, 3)
    for _ in range(3):
        assert await take(store) == []
    assert (await status(db)).waiting.events == 3
    await resume(db, said_by="me")
    assert sorted(await take_all(store, 3)) == sorted(more)


async def test_the_log_store_sends_what_was_redriven(db: Connection, open_log: OpenLog) -> None:
    store = await open_log()
    ids = await written(db, 6)
    await take_all(store, 6, lambda _: Dead("too large"))
    assert set((await states(db)).values()) == {"dead"}
    assert (await status(db)).waiting.events == 0
    async for _ in redrive(db, Selection(events=tuple(ids[:4])), said_by="me"):
        pass
    assert sorted(await take_all(store, 4)) == sorted(ids[:4])
    await until(lambda: only_dead(db, set(ids[4:])))


async def only_dead(db: Connection, ids: set[UUID]) -> bool:
    return await states(db) == dict.fromkeys(ids, "dead")


@pytest.mark.parametrize("way", ["redrive", "purge"])
async def test_a_key_that_a_dead_letter_holds_is_freed(db: Connection, open_log: OpenLog, way: str) -> None:
    store = await open_log(dead="hold_key")
    await write(db, event("k"))
    (first,) = await take_all(store, 1, lambda _: Dead("too large"))
    await write(db, event("k"), event("k"), event("other"))
    assert len(await take_all(store, 1)) == 1, "the other key's"
    assert await take(store) == []
    if way == "redrive":
        async for _ in redrive(db, Selection(keys=("k",)), said_by="me"):
            pass
        taken = await take_all(store, 3)
        assert taken[0] == first
    else:
        assert await purge(db, Selection(keys=("k",)), said_by="me") == 1
        taken = await take_all(store, 2)
    in_order = await db.fetch("SELECT id FROM outbox_event WHERE aggregate_id = 'k' ORDER BY position")
    assert taken == [row[0] for row in in_order]
    await until(lambda: only_dead(db, set()))


async def test_what_status_and_peek_say_is_what_the_store_hands_out(
    db: Connection, outbox: str, open_log: OpenLog
) -> None:
    store = await open_log()
    async with connect(outbox) as slow:
        transaction = slow.transaction()
        await transaction.start()
        for key in ("a", "b", "c"):
            await enqueue(slow, event(key))
        await written(db, 30)
        await take_all(store, 30)
        await transaction.commit()
    await written(db, 5)
    await until(lambda: counted(db, 8))
    shown = {one.id for one in await peek(db, limit=100)}
    assert len(shown) == 8
    assert set(await take_all(store, 8)) == shown
    await until(lambda: counted(db, 0))
    assert await peek(db) == []
    now = await status(db)
    assert now.dispatched.events == 38
    assert {lane.owner is not None for lane in now.lanes} == {True}


async def counted(db: Connection, events: int) -> bool:
    return (await status(db)).waiting.events == events


async def test_nothing_unacked_is_deleted_while_the_log_store_works(
    db: Connection, outbox: str, open_log: OpenLog
) -> None:
    store = await open_log()
    wrote: set[UUID] = set()
    acked: set[UUID] = set()
    buried: set[UUID] = set()
    over = asyncio.Event()
    turn = 0

    async def write_on(number: int) -> None:
        async with connect(outbox) as connection:
            for round_ in range(40):
                async with connection.transaction():
                    some = [event(f"{number}-{round_}-{n}") for n in range(3)]
                    for one in some:
                        await enqueue(connection, one)
                        await asyncio.sleep(0)
                wrote.update(one.id for one in some)

    def judge(_: UUID) -> Outcome:
        nonlocal turn
        turn += 1
        return Dead("no") if turn % 7 == 0 else Retry("later", 0.0) if turn % 5 == 0 else DISPATCHED

    async def relay() -> None:
        while not over.is_set():
            claim = await store.claim(20)
            outcomes = {one.id: judge(one.id) for one in claim.events}
            acked.update(key for key, outcome in outcomes.items() if outcome is DISPATCHED)
            buried.update(key for key, outcome in outcomes.items() if isinstance(outcome, Dead))
            await claim.settle(outcomes)
            await asyncio.sleep(0)

    async def pruner() -> None:
        async with connect(outbox) as connection:
            while not over.is_set():
                await prune(connection, 0, piece=5)
                # Taken before the table is read: what is written meanwhile need not be in what was read.
                known = set(wrote)
                here = {row[0] for row in await connection.fetch("SELECT id FROM outbox_event")}
                assert known - here <= acked

    async def finished() -> bool:
        all_written = len(wrote) == 3 * 40 * 3
        here = {row[0] for row in await db.fetch("SELECT id FROM outbox_event")}
        return here == buried and all_written

    async with asyncio.TaskGroup() as group:
        group.create_task(relay())
        group.create_task(pruner())
        await asyncio.wait([group.create_task(write_on(number)) for number in range(3)])
        await until(finished, within=25.0)
        over.set()
    assert wrote == acked | buried


async def test_a_rebase_under_way_loses_nothing_of_writers_or_of_a_relay_that_runs(
    db: Connection, outbox: str, open_log: OpenLog
) -> None:
    store = await open_log()
    wrote: set[UUID] = set()
    acked: set[UUID] = set()
    over = asyncio.Event()

    async def write_on(number: int) -> None:
        async with connect(outbox) as connection:
            for round_ in range(30):
                async with connection.transaction():
                    some = [event(f"{number}-{round_}-{n}") for n in range(3)]
                    for one in some:
                        await enqueue(connection, one)
                        await asyncio.sleep(0)
                wrote.update(one.id for one in some)

    async def relay() -> None:
        while not over.is_set():
            try:
                claim = await store.claim(20)
                acked.update(one.id for one in claim.events)
                await claim.settle({one.id: DISPATCHED for one in claim.events})
            except (ClaimLost, Unavailable):
                # The epochs were raised: what it had in hand is sent again.
                pass
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        group.create_task(relay())
        writers = [group.create_task(write_on(number)) for number in range(3)]
        async with connect(outbox) as operator:
            for _ in range(4):
                before = len(acked)
                await rebase(operator, "resend-all-unknown", said_by="me")
                await until(partial(passed, acked, before, writers), within=20.0)
        await asyncio.wait(writers)
        await until(lambda: counted(db, 0), within=20.0)
        over.set()
    assert acked == wrote


async def passed(acked: set[UUID], before: int, writers: list[asyncio.Task[None]]) -> bool:
    return len(acked) > before or all(writer.done() for writer in writers)


async def open_and_take(dsn: str) -> None:
    """Where it is noticed is the store's business: when it opens, or at its first claim."""
    store = await OutboxLog(dsn).open()
    try:
        await take_all(store, 1)
    finally:
        await store.close(Deadline(time.monotonic() + 5))


@pytest.mark.xdist_group("servers of their own for rebase")
async def test_a_restored_outbox_stands_until_it_is_rebased_and_then_sends_what_was_not_read(
    own_postgres: Callable[..., LocalPostgres],
) -> None:
    source, target = own_postgres(), own_postgres()
    source.create_database("shop")
    source.execute(schema.show(), "shop")
    source.execute("DO $$ BEGIN FOR n IN 1..3000 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$", "shop")
    store = await OutboxLog(source.dsn("shop")).open()
    async with connect(source.dsn("shop")) as db, connect(source.dsn("shop")) as slow:
        transaction = slow.transaction()
        await transaction.start()
        late = [event("late"), event("later")]
        for one in late:
            await enqueue(slow, one)
        read = await written(db, 30)
        await take_all(store, 30)
        await until(lambda: counted(db, 0))
        await store.close(Deadline(time.monotonic() + 5))
        await transaction.commit()
        new = await written(db, 5)
    dump = subprocess.run(
        [installed() / "bin" / "pg_dump", source.dsn("shop")], capture_output=True, check=True, timeout=30, text=True
    )
    target.create_database("shop")
    target.execute(dump.stdout, "shop")
    with pytest.raises(DatabaseReplaced, match="quiesce outbox rebase"):
        await open_and_take(target.dsn("shop"))
    async with connect(target.dsn("shop")) as db:
        await rebase(db, "resend-all-unknown", said_by="me")
        restored = await OutboxLog(target.dsn("shop")).open()
        try:
            wanted = {*(one.id for one in late), *new}
            taken = await take_all(restored, len(wanted))
            assert sorted(taken) == sorted(wanted)
            more = await written(db, 20)
            assert sorted(await take_all(restored, 20)) == sorted(more)
            # The server gives out the numbers that the restored rows had: none of them comes back.
            await db.execute("DO $$ BEGIN FOR n IN 1..4000 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$")
            last = await written(db, 1)
            assert await take_all(restored, 1) == last
            assert not set(read) & set(taken)
        finally:
            await restored.close(Deadline(time.monotonic() + 5))
        await read_to_the_end(db)
        assert (await prune(db, 0)).finished
        assert await db.fetchval("SELECT count(*) FROM outbox_event") == 0
