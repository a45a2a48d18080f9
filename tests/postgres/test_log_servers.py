"""The log store and what stands around its database: a restore, a promotion, a restart, a pooler, a role."""

import asyncio
import subprocess
from collections.abc import Awaitable, Callable
from typing import Any, Literal
from uuid import UUID

import pytest
from outbox_databases import OpenLog
from outbox_table import event, until, write
from pgbouncer import OpenPgBouncer

from quiesce.errors import DatabaseReplaced, SettingsError, Unavailable
from quiesce.outbox.outcome import DISPATCHED, Outcome, Retry
from quiesce.postgres import OutboxLog, connect, schema
from quiesce.postgres.driver import Connection
from quiesce.postgres.grants import grants
from quiesce.postgres.rebase import rebase
from quiesce.testing.postgres import LocalPostgres
from quiesce.testing.postgres_programs import installed

pytestmark = pytest.mark.xdist_group("log servers")

OwnPostgres = Callable[..., LocalPostgres]


async def drain(store: OutboxLog) -> list[UUID]:
    seen: list[UUID] = []
    while (claim := await store.claim(100)).events:
        seen += [one.id for one in claim.events]
        await claim.settle({one.id: DISPATCHED for one in claim.events})
    return seen


async def run(command: list[str], given: bytes = b"") -> bytes:
    def blocking() -> bytes:
        return subprocess.run(command, input=given, check=True, capture_output=True, timeout=30).stdout

    return await asyncio.to_thread(blocking)


async def drained(store: OutboxLog, count: int) -> list[UUID]:
    """All of so many, over several claims if lanes have to be taken first."""
    seen: list[UUID] = []

    async def all_there() -> bool:
        seen.extend(await drain(store))
        return len(seen) >= count

    await until(all_there)
    return seen


async def test_O2_O28_a_restored_database_is_noticed_and_goes_on_when_somebody_says_how(
    own_postgres: OwnPostgres, open_log: OpenLog
) -> None:
    old, new = own_postgres(), own_postgres()
    programs = installed() / "bin"
    async with connect(old.dsn()) as db:
        await schema.apply(db)
        # Its numbers are far ahead of a fresh server's.
        for _ in range(300):
            await db.execute("SELECT pg_current_xact_id()")
        await write(db, *(event(f"key {n}") for n in range(10)))
        store = await open_log(old.dsn())
        assert len(await drain(store)) == 10
        await write(db, *(unsent := [event(f"key {n}") for n in range(5)]))
    dump = await run([str(programs / "pg_dump"), old.dsn()])
    await run([str(programs / "psql"), "--quiet", new.dsn()], dump)
    with pytest.raises(DatabaseReplaced, match=r"another server, or restored.*quiesce outbox rebase"):
        await open_log(new.dsn())
    async with connect(new.dsn()) as db:
        await rebase(db, "resend-all-unknown", said_by="me")
    assert sorted(await drained(await open_log(new.dsn()), 5)) == sorted(one.id for one in unsent)


@pytest.mark.parametrize("mode", ["fast", "immediate"])
async def test_a_restart_of_the_server_doubles_what_was_in_flight_and_no_more(
    own_postgres: OwnPostgres, open_log: OpenLog, mode: Literal["fast", "immediate"]
) -> None:
    server = own_postgres()
    async with connect(server.dsn()) as db:
        await schema.apply(db)
        await write(db, *(event(f"key {n}") for n in range(20)))
    store = await open_log(server.dsn())
    before = await store.claim(4)
    await before.settle({one.id: DISPATCHED for one in before.events})
    claim = await store.claim(8)
    outcomes: dict[UUID, Outcome] = {one.id: DISPATCHED for one in claim.events}
    with pytest.raises(Unavailable, match="started anew"):
        async with asyncio.timeout(20):
            await _restart_meanwhile(server, mode, lambda: claim.settle(outcomes))
    seen = await drained(store, 16)
    assert len(seen) == len(set(seen)) == 16
    assert outcomes.keys() <= set(seen)


async def _restart_meanwhile(
    server: LocalPostgres, mode: Literal["fast", "immediate"], settle: Callable[[], Awaitable[Any]]
) -> Any:
    await asyncio.to_thread(server.stop, mode)
    settling = asyncio.ensure_future(settle())
    await asyncio.to_thread(server.start)
    return await settling


async def test_it_works_behind_a_pooler_of_transactions(
    outbox: str, db: Connection, pgbouncer: OpenPgBouncer, open_log: OpenLog
) -> None:
    bouncer = pgbouncer(default_pool_size="6")
    way = bouncer.dsn(outbox)
    one, other = await open_log(way, claims=4), await open_log(way, claims=4)
    assert one._connections.pooled
    written = [event(f"key {n % 20}") for n in range(200)]
    await write(db, *written)
    seen: list[UUID] = []
    failed: UUID | None = None

    async def all_seen() -> bool:
        nonlocal failed
        for store in (one, other):
            claim = await store.claim(20)
            outcomes: dict[UUID, Outcome] = {event.id: DISPATCHED for event in claim.events}
            if failed is None and claim.events:
                failed = claim.events[-1].id
                outcomes[failed] = Retry("no leader", 0.0)
            seen.extend(event_id for event_id, outcome in outcomes.items() if outcome is DISPATCHED)
            await claim.settle(outcomes)
        return len(seen) >= 200

    await until(all_seen, within=10)
    assert len(set(seen)) == len(seen) == 200
    by_key: dict[str, list[UUID]] = {}
    for one_written in written:
        by_key.setdefault(one_written.aggregate_id, []).append(one_written.id)
    for ids in by_key.values():
        assert [event_id for event_id in seen if event_id in ids] == ids


async def test_a_role_with_the_rights_of_a_relay_is_enough(outbox: str, db: Connection, open_log: OpenLog) -> None:
    role = f"relay_{outbox.rpartition('/')[2]}"
    await db.execute(f"CREATE ROLE {role} LOGIN")
    way = outbox.replace("postgres@", f"{role}@")
    try:
        with pytest.raises(SettingsError, match="may not read"):
            await open_log(way)
        for statement in await grants(db, "relay", role):
            await db.execute(statement)
        store = await open_log(way)
        await write(db, *(event(f"key {n}") for n in range(5)))
        claim = await store.claim(100)
        first, *rest = [one.id for one in claim.events]
        outcomes: dict[UUID, Outcome] = {first: Retry("no leader", 0.0)}
        await claim.settle(outcomes | dict.fromkeys(rest, DISPATCHED))
        assert await drained(store, 1) == [first]
    finally:
        await db.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
