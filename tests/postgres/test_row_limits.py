"""What ends a claim from outside: a killed relay, a killed backend, the server's own limits, a cut line, a cancel."""

import asyncio
import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

import pytest
from cancelled_at import CancelledAt
from outbox_databases import OpenStore
from outbox_table import event, others_locks, until, write
from wire_proxy import WireProxy

from quiesce.errors import ClaimLost, SchemaMissing, SettingsError, Unavailable
from quiesce.outbox.outcome import DISPATCHED, Dead, Retry
from quiesce.postgres import OutboxRows, connect
from quiesce.postgres.connections import CONNECTION_LOST
from quiesce.postgres.driver import Connection
from quiesce.testing.contracts.expectations import within
from quiesce.testing.postgres import LocalPostgres


async def kill_backends(db: Connection) -> None:
    await db.execute(
        "SELECT pg_terminate_backend(pid, 2000) FROM pg_stat_activity "
        "WHERE datname = current_database() AND application_name <> 'psql' AND pid <> pg_backend_pid()"
    )


async def test_a_killed_relays_rows_are_free_at_once(outbox: str, db: Connection, open_store: OpenStore) -> None:
    await write(db, *(event(f"key {n}") for n in range(20)))
    program = (
        "import asyncio, sys\n"
        "from quiesce.postgres import OutboxRows\n"
        "async def main():\n"
        "    store = await OutboxRows(sys.argv[1]).open()\n"
        "    claim = await store.claim(100)\n"
        "    print(len(claim.events), flush=True)\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen([sys.executable, "-c", program, outbox], stdout=subprocess.PIPE, text=True) as relay:
        try:
            assert relay.stdout is not None
            assert await asyncio.to_thread(relay.stdout.readline) == "20\n"
            store = await open_store()
            assert list((await store.claim(100)).events) == []
            relay.send_signal(signal.SIGKILL)
            killed_at = time.monotonic()
            while not (claim := await store.claim(100)).events:
                assert time.monotonic() - killed_at < 1.0
                await asyncio.sleep(0.001)
            print(f"free {1000 * (time.monotonic() - killed_at):.1f} ms after SIGKILL")
            assert len(claim.events) == 20
        finally:
            relay.kill()


async def test_a_killed_backend_loses_the_claim_and_says_so(db: Connection, open_store: OpenStore) -> None:
    await write(db, *(event(f"key {n}") for n in range(3)))
    one, other = await open_store(), await open_store()
    claim = await one.claim(100)
    await kill_backends(db)
    killed_at = time.monotonic()
    with pytest.raises(ClaimLost):
        await claim.settle({e.id: DISPATCHED for e in claim.events})
    assert len((await other.claim(100)).events) == 3
    assert time.monotonic() - killed_at < 1.0
    with pytest.raises(ClaimLost):
        await claim.settle({})
    await claim.release()


async def test_a_store_gets_over_a_lost_connection_by_itself(db: Connection, open_store: OpenStore) -> None:
    await write(db, event())
    store = await open_store(claims=3)
    claims = [await store.claim(1) for _ in range(3)]
    for claim in claims:
        await claim.release()
    await kill_backends(db)
    assert len((await store.claim(1)).events) == 1


async def test_release_never_raises_for_a_lost_connection(db: Connection, open_store: OpenStore) -> None:
    await write(db, event())
    store = await open_store()
    claim = await store.claim(1)
    await kill_backends(db)
    await claim.release()
    assert len((await store.claim(1)).events) == 1


async def test_the_server_ends_a_claim_that_hangs(db: Connection, open_store: OpenStore) -> None:
    await write(db, event())
    hangs, other = await open_store(claim_bound=0.3), await open_store()
    claim = await hangs.claim(1)

    async def free() -> bool:
        return bool((await other.claim(1)).events)

    await until(free, within=1.5)
    with pytest.raises(ClaimLost):
        await claim.settle({claim.events[0].id: DISPATCHED})


async def test_a_busy_claim_is_ended_too(db: Connection, open_store: OpenStore) -> None:
    if db.get_server_version().major < 17:
        pytest.skip("transaction_timeout came with PostgreSQL 17")
    await write(db, *(event() for _ in range(5)))
    store = await open_store(claim_bound=0.3)
    claim = await store.claim(5)
    connection = claim._connection
    assert connection is not None

    async def ended() -> bool:
        # Never idle for long, and yet it ends.
        with contextlib.suppress(*CONNECTION_LOST):
            await connection.execute("SELECT 1")
        return connection.is_closed()

    await until(ended, within=1.5)
    with pytest.raises(ClaimLost):
        await claim.settle({})


async def test_the_limits_hold_for_the_claim_only(db: Connection, open_store: OpenStore) -> None:
    store = await open_store()
    await store.claim(1)
    connection = await store._connections.take()
    names = ("statement_timeout", "idle_in_transaction_session_timeout", "enable_seqscan", "plan_cache_mode", "jit")
    for name in names:
        assert await connection.fetchval(f"SHOW {name}") == await db.fetchval(f"SHOW {name}")
    store._connections.give_back(connection)


@pytest.fixture
async def proxy(outbox: str) -> AsyncIterator[WireProxy]:
    async with WireProxy(outbox) as started:
        yield started


async def test_a_line_cut_before_the_commit_is_a_lost_claim(db: Connection, proxy: WireProxy) -> None:
    await write(db, event())
    store = await OutboxRows(proxy.dsn).open()
    claim = await store.claim(1)
    proxy.cut_at(b"UPDATE outbox_event", "before")
    with pytest.raises(ClaimLost):
        await claim.settle({claim.events[0].id: DISPATCHED})
    again = await store.claim(1)
    assert again.events == claim.events
    await again.settle({claim.events[0].id: DISPATCHED})
    await store.close(within(1))


@pytest.mark.parametrize("recorded", [False, True])
async def test_a_line_cut_in_the_commit_is_not_known(db: Connection, proxy: WireProxy, recorded: bool) -> None:
    await write(db, event())
    store = await OutboxRows(proxy.dsn).open()
    claim = await store.claim(1)
    proxy.cut_at(b"COMMIT", "after" if recorded else "before")
    with pytest.raises(Unavailable, match="may have happened or not"):
        await claim.settle({claim.events[0].id: DISPATCHED})

    async def known() -> bool:
        return await others_locks(db) == 0

    await until(known)
    marked = await db.fetchval("SELECT dispatched_at IS NOT NULL FROM outbox_event")
    assert marked is recorded
    assert len((await store.claim(1)).events) == (0 if recorded else 1)
    await store.close(within(1))


async def test_a_line_cut_in_a_claim_is_told(db: Connection, proxy: WireProxy) -> None:
    await write(db, event())
    store = OutboxRows(proxy.dsn)
    proxy.cut_at(b"SKIP LOCKED", "after")
    with pytest.raises(Unavailable):
        await store.claim(1)
    assert len((await store.claim(1)).events) == 1
    await store.close(within(1))


async def test_a_connection_that_died_while_idle_is_not_an_outage(db: Connection, proxy: WireProxy) -> None:
    await write(db, event())
    store = await OutboxRows(proxy.dsn).open()
    proxy.cut_at(b"BEGIN", "before")
    assert len((await store.claim(1)).events) == 1
    await store.close(within(1))


async def test_a_missing_table_names_the_command(bare: str) -> None:
    with pytest.raises(SchemaMissing, match="quiesce outbox schema apply"):
        await OutboxRows(bare).open()


async def test_a_table_that_goes_away_names_the_command(bare: str) -> None:
    async with connect(bare) as connection:
        store = OutboxRows(bare)
        with pytest.raises(SchemaMissing, match="quiesce outbox schema apply"):
            await store.claim(1)
        await store.close(within(1))
        assert await others_locks(connection) == 0


@pytest.mark.parametrize(
    "wrong", [{"claims": 0}, {"claim_bound": 0.0}, {"statement_timeout": float("nan")}, {"max_claim_bytes": 0}]
)
def test_wrong_settings_are_told(wrong: dict[str, float]) -> None:
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        OutboxRows("postgresql://nowhere/db", **wrong)  # type: ignore[arg-type] # wrong on purpose


class Sweep:
    """What is cancelled, from the beginning for each of its awaits."""

    def __init__(self, dsn: str, db: Connection) -> None:
        self._dsn = dsn
        self._db = db

    async def run(self, prepare: Callable[[OutboxRows], Awaitable[Coroutine[Any, Any, object]]]) -> int:
        """Returns how many awaits there were."""
        looker = await OutboxRows(self._dsn).open()
        step = 0
        while True:
            step += 1
            store = OutboxRows(self._dsn)
            call = CancelledAt(await prepare(store), step)
            task = asyncio.ensure_future(_awaited(call))
            await asyncio.wait({task}, timeout=3.0)
            assert task.done()
            await until(self._all_free, within=1.0)
            assert not store._open
            assert not (await store.close(within(1))).forced
            await self._db.execute(
                "UPDATE outbox_event SET dispatched_at = NULL, dead_at = NULL; DELETE FROM outbox_parked"
            )
            seen = await looker.claim(100)
            assert len(seen.events) == 4
            await seen.release()
            if call.steps < step:
                await looker.close(within(1))
                return step - 1
            with pytest.raises(asyncio.CancelledError):
                task.result()

    async def _all_free(self) -> bool:
        return await others_locks(self._db) == 0


async def _awaited(call: CancelledAt) -> object:
    return await call


@pytest.fixture
async def sweep(outbox: str, db: Connection) -> Sweep:
    await write(db, *(event(f"key {n}") for n in range(4)))
    return Sweep(outbox, db)


async def test_a_claim_cancelled_at_any_await_leaves_no_lock(sweep: Sweep) -> None:
    async def on_an_idle_connection(store: OutboxRows) -> Coroutine[Any, Any, object]:
        await store.open()
        return _claim_and_release(store)

    assert await sweep.run(on_an_idle_connection) >= 4


async def test_a_first_claim_cancelled_at_any_await_leaves_no_lock(sweep: Sweep) -> None:
    async def on_a_new_connection(store: OutboxRows) -> Coroutine[Any, Any, object]:
        return _claim_and_release(store)

    assert await sweep.run(on_a_new_connection) >= 6


async def test_a_settle_cancelled_at_any_await_leaves_no_lock(sweep: Sweep) -> None:
    async def settle(store: OutboxRows) -> Coroutine[Any, Any, object]:
        claim = await store.claim(100)
        a, b, c, _ = [one.id for one in claim.events]
        return claim.settle({a: Retry("later", 0.0), b: DISPATCHED, c: Dead("too large")})

    assert await sweep.run(settle) >= 5


async def test_a_cancelled_release_leaves_no_lock(sweep: Sweep) -> None:
    async def release(store: OutboxRows) -> Coroutine[Any, Any, object]:
        return (await store.claim(100)).release()

    assert await sweep.run(release) >= 1


async def _claim_and_release(store: OutboxRows) -> None:
    claim = await store.claim(100)
    await claim.release()


@pytest.mark.xdist_group("a server that freezes")
async def test_O18_a_frozen_server_is_told_and_closing_is_bounded(own_postgres: Callable[..., LocalPostgres]) -> None:
    server = own_postgres()
    async with connect(server.dsn()) as connection:
        from quiesce.postgres import schema

        await schema.apply(connection)
        await write(connection, event())
    store = await OutboxRows(server.dsn(), statement_timeout=0.5, connect_timeout=0.5).open()
    held = await store.claim(1)
    server.pause()
    try:
        began = time.monotonic()
        with pytest.raises(Unavailable):
            await store.claim(1)
        await held.release()
        closed = await store.close(within(0.2))
        assert time.monotonic() - began < 6.0
        assert not closed.forced
    finally:
        server.resume()
    again = await OutboxRows(server.dsn()).open()

    async def free() -> bool:
        claim = await again.claim(1)
        await claim.release()
        return bool(claim.events)

    await until(free, within=2.0)
    await again.close(within(1))


async def test_O20_the_connections_are_its_own_and_few(db: Connection, open_store: OpenStore) -> None:
    await write(db, *(event(f"key {n}") for n in range(10)))
    store = await open_store(claims=2)
    claims = [await store.claim(2), await store.claim(2)]
    third = asyncio.ensure_future(store.claim(2))
    await asyncio.wait({third}, timeout=0.05)
    assert not third.done()
    mine = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    assert await db.fetchval(mine) == 2
    await claims[0].release()
    assert len((await third).events) == 2
    assert await db.fetchval(mine) == 2
    for claim in (claims[1], third.result()):
        await claim.release()


async def test_a_claim_too_many_does_not_wait_for_ever(db: Connection, open_store: OpenStore) -> None:
    await write(db, event(), event())
    store = await open_store(claims=1, claim_bound=0.1)
    await store.claim(1)
    with pytest.raises(Unavailable, match="claims stayed open"):
        await store.claim(1)
