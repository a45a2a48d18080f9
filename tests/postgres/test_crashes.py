"""A server that crashed has forgotten commits that nobody waited for, and gives their positions and numbers out again.

What a store had read of these proves nothing then, whatever it has still in flight. Of what is in the table now
nothing may be lost; duplicates are allowed.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Literal
from uuid import UUID

import pytest
from outbox_databases import OpenLog
from outbox_table import event, until, write
from pgbouncer import LocalPgBouncer

from quiesce.errors import ClaimLost, Unavailable
from quiesce.lifecycle.deadline import Deadline
from quiesce.outbox.outcome import DISPATCHED, Outcome
from quiesce.outbox.ports import Claim, OutboxStore
from quiesce.postgres import OutboxRows, connect, schema
from quiesce.postgres.driver import Connection
from quiesce.testing.postgres import LocalPostgres

pytestmark = pytest.mark.xdist_group("crashes")

OwnPostgres = Callable[..., LocalPostgres]
Crash = Literal["server", "session"]

LAZY = {"wal_writer_delay": "10s", "wal_writer_flush_after": "1GB", "autovacuum": "off"}
"""What is committed with `synchronous_commit=off` stays off the disk for seconds."""

both = pytest.mark.parametrize("crash", ["server", "session"])


def acked(claim: Claim) -> dict[UUID, Outcome]:
    return {one.id: DISPATCHED for one in claim.events}


async def write_each(db: Connection, count: int) -> None:
    for number in range(count):
        await write(db, event(f"key {number % 7}"))


async def ids(db: Connection) -> set[UUID]:
    return {row["id"] for row in await db.fetch("SELECT id FROM outbox_event")}


async def crashed(server: LocalPostgres, db: Connection, crash: Crash) -> None:
    """The whole server is killed, or one of its sessions, for which it starts all others anew. Then it is back."""
    if crash == "server":
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
        return
    os.kill(await db.fetchval("SELECT pg_backend_pid()"), signal.SIGKILL)

    async def back() -> bool:
        try:
            async with connect(server.dsn()) as anew:
                return bool(await anew.fetchval("SELECT true"))
        except (OSError, Unavailable):
            return False

    await until(lambda: _is(db.is_closed()), within=30)
    await until(back, within=30)


async def _is(true: bool) -> bool:
    return true


@asynccontextmanager
async def prepared(own_postgres: OwnPostgres, **settings: str) -> AsyncIterator[tuple[LocalPostgres, Connection]]:
    server = own_postgres(durable=True, settings={**LAZY, **settings})
    async with connect(server.dsn()) as db:
        await schema.apply(db)
        await db.execute("CHECKPOINT")
        yield server, db


async def claimed(store: OutboxStore, count: int) -> Claim:
    """Nothing is committed meanwhile, so one claim has them all."""
    found: list[Claim] = []

    async def there() -> bool:
        found[:] = [await store.claim(1000)]
        return bool(found[0].events)

    await until(there, within=30)
    assert len(found[0].events) == count
    return found[0]


async def drained(store: OutboxStore, wanted: set[UUID]) -> list[UUID]:
    """What comes until these were all there, and what is left then."""
    seen: list[UUID] = []

    async def all_there() -> bool:
        try:
            claim = await store.claim(1000)
        except Unavailable:
            return False
        seen.extend(acked(claim))
        if claim.events:
            await claim.settle(acked(claim))
        return not claim.events and wanted <= set(seen)

    await until(all_there, within=30)
    return seen


async def in_flight(store: OutboxStore, db: Connection) -> Claim:
    """A claim of 100 events that are not on the disk. To own lanes is, with all that was committed before."""
    await write_each(db, 1)
    await drained(store, await ids(db))
    await db.execute("DELETE FROM outbox_event")
    await db.execute("SET synchronous_commit = off")
    await write_each(db, 100)
    return await claimed(store, 100)


@both
async def test_what_is_in_flight_over_a_crash_moves_no_cursor(
    own_postgres: OwnPostgres, open_log: OpenLog, crash: Crash
) -> None:
    async with prepared(own_postgres) as (server, db):
        store = await open_log(server.dsn())
        claim = await in_flight(store, db)
        await crashed(server, db, crash)
    async with connect(server.dsn()) as db:
        assert not acked(claim).keys() <= await ids(db), "the crash was to lose some"
        # Further than the claim had come: in positions, and in numbers of transactions.
        await write_each(db, 200)
        with pytest.raises((ClaimLost, Unavailable), match="started anew"):
            await claim.settle(acked(claim))
        there = await ids(db)
        assert sorted(await drained(store, there)) == sorted(there)


@both
async def test_a_claim_that_nobody_settles_holds_nothing_up_after_a_crash(
    own_postgres: OwnPostgres, open_log: OpenLog, crash: Crash
) -> None:
    async with prepared(own_postgres) as (server, db):
        # Which is how long what is in flight could be recorded, had only connections been lost.
        store = await open_log(server.dsn(), statement_timeout=120.0)
        await write_each(db, 10)
        claim = await claimed(store, 10)
        await crashed(server, db, crash)
        assert await drained(store, set(acked(claim)))


@pytest.mark.parametrize("first", ["a claim", "a settle"])
async def test_a_server_that_gives_epochs_out_again_is_read_anew(
    own_postgres: OwnPostgres, open_log: OpenLog, first: str
) -> None:
    """Here the stores do not wait for the disk either: what owning the lanes wrote is lost, too."""
    async with prepared(own_postgres, synchronous_commit="off") as (server, db):
        store = await open_log(server.dsn())
        claim = await in_flight(store, db)
        held = dict(store._lanes.held)
        await crashed(server, db, "server")
    async with connect(server.dsn()) as db:
        assert await db.fetchval("SELECT max(epoch) FROM outbox_lane") < max(held.values()), "was to be forgotten"
        await db.execute("SET synchronous_commit = on")
        before = await ids(db)
        await write_each(db, 20)
        if first == "a settle":
            with pytest.raises(Unavailable, match="started anew"):
                await claim.settle(acked(claim))
        assert await drained(store, await ids(db) - before)


@pytest.mark.needs("pgbouncer")
async def test_behind_a_pooler_a_crash_is_noticed_too(own_postgres: OwnPostgres, open_log: OpenLog) -> None:
    """The line to the pooler stays while the server behind it goes and comes."""
    async with prepared(own_postgres) as (server, db):
        with LocalPgBouncer(server.dsn(), default_pool_size="6", server_login_retry="1") as bouncer:
            store = await open_log(bouncer.dsn(server.dsn()))
            claim = await in_flight(store, db)
            await crashed(server, db, "server")
            async with connect(server.dsn()) as after:
                await write_each(after, 200)
                with pytest.raises((ClaimLost, Unavailable), match="started anew"):
                    await claim.settle(acked(claim))
                there = await ids(after)
                assert sorted(await drained(store, there)) == sorted(there)
            await store.close(_soon())


@both
async def test_a_claim_of_rows_ends_with_the_crash(own_postgres: OwnPostgres, crash: Crash) -> None:
    async with prepared(own_postgres) as (server, db):
        store = await OutboxRows(server.dsn()).open()
        claim = await in_flight(store, db)
        await crashed(server, db, crash)
    async with connect(server.dsn()) as db:
        assert not acked(claim).keys() <= await ids(db), "the crash was to lose some"
        await write_each(db, 200)
        with pytest.raises((ClaimLost, Unavailable)):
            await claim.settle(acked(claim))
        there = await ids(db)
        assert sorted(await drained(store, there)) == sorted(there)
    await store.close(_soon())


def _soon() -> Deadline:
    return Deadline(asyncio.get_running_loop().time() + 2.0)
