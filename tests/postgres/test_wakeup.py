"""Waking a relay in another process, away from the writers."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from outbox_table import until
from wire_proxy import WireProxy

from quiesce.lifecycle.deadline import Deadline
from quiesce.outbox import OutboxEvent
from quiesce.postgres import connect, enqueue, enqueue_many, schema
from quiesce.postgres.driver import Connection
from quiesce.postgres.wakeup import _APART, CHANNEL, OutboxWaker, OutboxWakeups
from quiesce.testing.manual_stop import ManualStop
from quiesce.testing.postgres import LocalPostgres

BOUND = 3.0


class Woken:
    """Counts wake-ups; `more` waits for the next."""

    def __init__(self) -> None:
        self._news = asyncio.Event()
        self.times = 0

    def __call__(self) -> None:
        self.times += 1
        self._news.set()

    async def more(self) -> None:
        async with asyncio.timeout(BOUND):
            await self._news.wait()
        self._news.clear()


@asynccontextmanager
async def listening(dsn: str) -> AsyncIterator[tuple[Woken, ManualStop]]:
    woken, stop = Woken(), ManualStop()
    task = asyncio.create_task(OutboxWakeups(dsn, woken).run(stop))
    try:
        await woken.more()
        yield woken, stop
    finally:
        stop.now()
        async with asyncio.timeout(BOUND):
            await task


@asynccontextmanager
async def waking(dsn: str) -> AsyncIterator[OutboxWaker]:
    waker = await OutboxWaker(dsn).open()
    try:
        yield waker
    finally:
        closed = await waker.close(Deadline(time.monotonic() + BOUND))
        assert not closed.forced
        assert await waker.close(Deadline(time.monotonic())) == type(closed)()


async def test_a_nudge_wakes_who_listens_and_many_share_one(outbox: str) -> None:
    async with listening(outbox) as (woken, _), waking(outbox) as waker:
        assert woken.times == 1, "on connecting: something may have been missed"
        for _ in range(1000):
            waker.nudge()
        await woken.more()
        assert woken.times < 100


async def test_writers_without_a_pause_cost_a_notification_now_and_then(outbox: str) -> None:
    async with listening(outbox) as (woken, _), waking(outbox) as waker:
        began, before = time.monotonic(), woken.times
        async with asyncio.timeout(BOUND):
            while woken.times < before + 10:
                waker.nudge()
                await asyncio.sleep(0)
        assert time.monotonic() - began >= 9 * _APART


async def test_a_nudge_from_a_thread_and_plain_sql_wake_too(outbox: str, db: Connection) -> None:
    async with listening(outbox) as (woken, _), waking(outbox) as waker:
        thread = threading.Thread(target=waker.nudge)
        thread.start()
        await asyncio.to_thread(thread.join, BOUND)
        await woken.more()
        await db.execute(f"NOTIFY {CHANNEL}")
        await woken.more()


_WAITS = "SELECT wait_event_type, wait_event FROM pg_stat_activity WHERE pid = $1"


async def waits_for(db: Connection, other: Connection, wanted: tuple[str, str | None]) -> None:
    """Until the session of `other` waits for that; None is anything of the kind."""
    kind, what = wanted

    async def does() -> bool:
        row = await db.fetchrow(_WAITS, other.get_server_pid())
        return row is not None and row[0] == kind and what in (None, row[1])

    await until(does)


async def test_o21_writers_go_on_while_somebody_holds_the_lock_that_notify_takes(
    own_postgres: Callable[..., LocalPostgres],
) -> None:
    """A transaction that said NOTIFY holds a lock on all databases from the beginning of its commit to its end. Here
    that end is waited for in vain: it asks for a standby that is not there."""
    server = own_postgres(settings={"synchronous_standby_names": "nobody", "synchronous_commit": "local"})
    dsn = server.dsn()
    async with connect(dsn) as db, connect(dsn) as holder, connect(dsn) as writer, connect(dsn) as one_that_notifies:
        await schema.apply(db)
        await holder.execute("SET synchronous_commit = on")
        # A transaction that changes nothing waits for no standby.
        holding = asyncio.create_task(holder.execute("BEGIN; CREATE TABLE x (); NOTIFY x; COMMIT"))
        await waits_for(db, holder, ("IPC", "SyncRep"))
        waiting = asyncio.create_task(one_that_notifies.execute("NOTIFY x"))
        # So this test could fail: whoever says NOTIFY stands still.
        await waits_for(db, one_that_notifies, ("Lock", None))
        async with waking(dsn) as waker:
            async with asyncio.timeout(BOUND):
                for number in range(3):
                    async with writer.transaction():
                        await enqueue(writer, OutboxEvent("orders", f"k{number}", "Placed", b"{}"))
                        await enqueue_many(writer, [OutboxEvent("orders", "k", "Placed", b"{}")])
                    waker.nudge()
            assert await db.fetchval("SELECT count(*) FROM outbox_event") == 6
            assert not holding.done()
            assert not waiting.done()
        holder.terminate()
        one_that_notifies.terminate()
        async with asyncio.timeout(BOUND):
            await asyncio.gather(holding, waiting, return_exceptions=True)


@pytest.mark.parametrize("how", ["cut", "ended by the server"])
async def test_o18_a_lost_connection_is_made_anew_and_wakes_at_once(outbox: str, db: Connection, how: str) -> None:
    async with WireProxy(outbox) as proxy, listening(proxy.dsn) as (woken, _), waking(outbox) as waker:
        before = woken.times
        if how == "cut":
            proxy.cut()
        else:
            await db.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' "
                "AND datname = current_database()"
            )
        await woken.more()
        assert woken.times > before
        waker.nudge()
        await woken.more()


async def test_o18_one_that_fell_silent_is_noticed(outbox: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quiesce.postgres.wakeup._PROBE", 0.05)
    monkeypatch.setattr("quiesce.postgres.wakeup._STATEMENT", 0.2)
    async with WireProxy(outbox) as proxy, listening(proxy.dsn) as (woken, _):
        before = woken.times
        proxy.freeze()
        # Nobody cuts the line: its own probe finds out, and it connects anew, to the same silence.
        async with asyncio.timeout(BOUND):
            while proxy.links < 2:
                await asyncio.sleep(0.005)
        assert woken.times == before
        proxy.thaw()
        await woken.more()


async def test_a_stop_ends_it_at_once_also_while_the_server_is_silent(outbox: str) -> None:
    async with WireProxy(outbox) as proxy:
        proxy.freeze()
        stop = ManualStop()
        task = asyncio.create_task(OutboxWakeups(proxy.dsn, lambda: None).run(stop))
        async with asyncio.timeout(BOUND):
            while not proxy.links:
                await asyncio.sleep(0.001)
        stop.now()
        async with asyncio.timeout(BOUND):
            await task


async def test_a_waker_whose_server_is_away_neither_waits_nor_fails(outbox: str) -> None:
    async with WireProxy(outbox) as proxy:
        waker = await OutboxWaker(proxy.dsn).open()
        proxy.freeze()
        waker.nudge()
        proxy.cut()
        waker.nudge()
        await waker.close(Deadline(time.monotonic() + 0.5))
        waker.nudge()
