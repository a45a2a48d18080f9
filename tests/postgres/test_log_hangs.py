"""The log store where an answer does not come, or comes late: nothing waits for ever, and nothing goes back."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from outbox_databases import OpenLog
from outbox_table import event, until, write
from wire_proxy import WireProxy

from quiesce.errors import SettingsError, Unavailable
from quiesce.lifecycle.backoff import Backoff
from quiesce.lifecycle.deadline import Deadline
from quiesce.outbox.outcome import DISPATCHED, Outcome
from quiesce.outbox.ports import Claim
from quiesce.postgres import OutboxLog, connect, log_recorder, log_statements, wakeup
from quiesce.postgres.connections import open_connection
from quiesce.postgres.driver import Connection
from quiesce.postgres.log_connections import LogConnections
from quiesce.postgres.pausing import pause, resume
from quiesce.postgres.wakeup import CHANNEL, OutboxWaker

BOUND = 5.0


def acked(claim: Claim) -> dict[UUID, Outcome]:
    return {one.id: DISPATCHED for one in claim.events}


async def claimed(store: OutboxLog, count: int) -> Claim:
    found: list[Claim] = []

    async def has() -> bool:
        found.append(await store.claim(100))
        return len(found[-1].events) == count

    await until(has)
    return found[-1]


@pytest.mark.parametrize("word", [b"BEGIN", b"to_regclass", b"pg_control_system", b"COMMIT"])
async def test_a_server_that_falls_silent_while_a_connection_is_looked_at_is_given_up(outbox: str, word: bytes) -> None:
    async with WireProxy(outbox) as proxy:
        connections = LogConnections(proxy.dsn, "x", connect_timeout=1.0, statement_timeout=0.3)
        proxy.cut_at(word, "silent")
        async with asyncio.timeout(BOUND):
            with pytest.raises(Unavailable):
                await connections.fetch(log_statements.PAUSED)
            # Other lines are well.
            await connections.fetch(log_statements.PAUSED)
        await connections.close(Deadline(time.monotonic() + 1.0))


async def test_a_server_that_falls_silent_while_the_store_opens_is_given_up(outbox: str) -> None:
    async with WireProxy(outbox) as proxy:
        store = OutboxLog(proxy.dsn, connect_timeout=1.0, statement_timeout=0.3)
        proxy.cut_at(b"outbox_control SET", "silent")
        async with asyncio.timeout(BOUND):
            with pytest.raises(Unavailable):
                await store.open()
            await store.open()
            await store.close(Deadline(time.monotonic() + 1.0))


async def test_what_is_being_recorded_is_not_read_again_by_who_takes_its_lanes_anew(
    db: Connection, outbox: str, open_log: OpenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All lines are cut while a settle is under way, and the lanes are taken before it is tried again."""
    monkeypatch.setattr(log_recorder, "_AGAIN", Backoff(first=0.5, ceiling=0.5, draw=lambda: 1.0))
    async with WireProxy(outbox) as proxy:
        store = await open_log(proxy.dsn, claims=2)
        await write(db, event("k"))
        claim = await claimed(store, 1)
        fetch, cut = store._connections.fetch, asyncio.Event()

        async def cut_once(statement: str, *values: Any, **more: Any) -> Sequence[asyncpg.Record]:
            if statement == log_statements.MOVE and not cut.is_set():
                cut.set()
                proxy.cut()
                raise Unavailable("away for a moment")
            return await fetch(statement, *values, **more)

        monkeypatch.setattr(store._connections, "fetch", cut_once)
        settling = asyncio.ensure_future(claim.settle(acked(claim)))
        async with asyncio.timeout(BOUND):
            await cut.wait()
            while not settling.done():
                again = await store.claim(10)
                assert not again.events, "what the broker has acked"
                await asyncio.sleep(0.01)
            assert (await settling).dispatched == 1
    assert await db.fetchval("SELECT sum(dispatched) FROM outbox_lane") == 1


async def test_a_settle_that_was_taken_for_lost_and_comes_late_moves_nothing_back(
    db: Connection, open_log: OpenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await open_log(claims=2)
    sent: list[Sequence[Any]] = []
    fetch = store._connections.fetch

    async def noted(statement: str, *values: Any, **more: Any) -> Sequence[asyncpg.Record]:
        if statement == log_statements.MOVE:
            sent.append(values)
        return await fetch(statement, *values, **more)

    monkeypatch.setattr(store._connections, "fetch", noted)
    for _ in range(2):
        await write(db, event("k"))
        claim = await claimed(store, 1)
        await claim.settle(acked(claim))
    moved = "SELECT lane, last, dispatched FROM outbox_lane ORDER BY lane"
    before = await db.fetch(moved)
    assert len(sent) >= 2
    assert await db.fetch(log_statements.MOVE, *sent[-2]) == []
    assert await db.fetch(moved) == before
    # What was sent last may come twice.
    assert len(await db.fetch(log_statements.MOVE, *sent[-1])) == 1
    assert await db.fetch(moved) == before


async def test_a_pause_is_noticed_soon_also_behind_a_write_that_took_long(db: Connection, open_log: OpenLog) -> None:
    store = await open_log(claims=2)
    await claimed(store, 0)
    async with store._writer.turn:
        store._tending._look_at = 0.0
        waiting = asyncio.ensure_future(store.claim(1))
        # This long it takes, and that is no reason to look five times as seldom.
        await asyncio.sleep(0.6)
    await (await waiting).release()
    assert store._tending._look_at <= time.monotonic() + 1.0
    await pause(db, said_by="me")
    try:
        async with asyncio.timeout(BOUND):
            while not store._tending.paused:
                await (await store.claim(1)).release()
                await asyncio.sleep(0.01)
    finally:
        await resume(db, said_by="me")


async def test_whatever_a_server_says_while_it_fails_over_a_waker_wakes_again(
    outbox: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = asyncio.Event()
    monkeypatch.setattr(wakeup, "_AGAIN", Backoff(first=0.01, ceiling=0.01))
    async with WireProxy(outbox) as proxy, connect(outbox) as listener:
        await listener.add_listener(CHANNEL, lambda *_: heard.set())
        waker = await OutboxWaker(proxy.dsn).open()
        refused = asyncio.Event()

        async def refuse_once(*arguments: Any) -> Connection:
            if not refused.is_set():
                refused.set()
                raise SettingsError("the role may not log in")
            return await open_connection(*arguments)

        monkeypatch.setattr(wakeup, "open_connection", refuse_once)
        proxy.cut()
        async with asyncio.timeout(BOUND):
            while not refused.is_set() or not heard.is_set():
                if not refused.is_set():
                    heard.clear()
                waker.nudge()
                await asyncio.sleep(0.01)
        await waker.close(Deadline(time.monotonic() + 1.0))
