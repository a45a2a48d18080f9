"""One contract for the stores of idempotency keys, on every driver. SQLAlchemy has connections and sessions."""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio
import asyncpg
import psycopg
import pytest
import sqlalchemy
from key_scene import TABLE
from psycopg_pool import AsyncConnectionPool
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

import quiesce.postgres
import quiesce.psycopg
import quiesce.sqlalchemy
from quiesce.errors import KeyLost, SchemaMissing, Unavailable
from quiesce.inbox.kept_response import KeptResponse
from quiesce.inbox.key_ports import KeyClaim, NoClaim
from quiesce.inbox.keyed_request import KeyedRequest

if TYPE_CHECKING:
    from quiesce.testing.postgres_address import PostgresAddress

pytestmark = pytest.mark.needs("postgres")

ONE = KeyedRequest("alice", "one", b"f" * 32)
OTHER_BODY = KeyedRequest("alice", "one", b"g" * 32)
ANSWER = KeptResponse(201, ((b"location", b"/orders/1"), (b"x-odd", b"caf\xe9")), b"\x00bytes\xff")
WITHIN = 20.0
DRIVERS = ("asyncpg", "psycopg", "sqlalchemy+asyncpg", "sqlalchemy+psycopg", "session+asyncpg", "session+psycopg")


@dataclass(frozen=True)
class Store:
    """`keys` makes a store; `write` executes SQL by what the store gives to handlers; `look` asks beside it."""

    keys: Callable[..., Any]
    write: Callable[[Any, str], Awaitable[Any]]
    look: Callable[[str], Awaitable[Any]]


@pytest.fixture(scope="module")
def store_database(postgres: "PostgresAddress", database_template: str) -> Iterator[str]:
    """One for all of these tests; each begins with empty tables."""
    name = f"quiesce_test_{uuid.uuid4().hex[:12]}"
    yield postgres.create_database(name, database_template)
    postgres.drop_database(name)


@contextlib.asynccontextmanager
async def _asyncpg(dsn: str) -> AsyncIterator[tuple[Callable[..., Any], Callable[[Any, str], Awaitable[Any]]]]:
    async with asyncpg.create_pool(dsn, min_size=0, max_size=2) as db:
        yield (lambda **settings: quiesce.postgres.IdempotencyKeys(db, **settings)), lambda c, sql: c.fetchval(sql)


@contextlib.asynccontextmanager
async def _psycopg(dsn: str) -> AsyncIterator[tuple[Callable[..., Any], Callable[[Any, str], Awaitable[Any]]]]:
    async def write(connection: psycopg.AsyncConnection[Any], sql: str) -> Any:
        row = await (await connection.execute(sql.encode())).fetchone()
        return row[0] if row else None

    async with AsyncConnectionPool(dsn, min_size=0, max_size=2, open=False) as db:
        yield (lambda **settings: quiesce.psycopg.IdempotencyKeys(db, **settings)), write


@contextlib.asynccontextmanager
async def _sqlalchemy(
    dsn: str, driver: str, session: bool
) -> AsyncIterator[tuple[Callable[..., Any], Callable[[Any, str], Awaitable[Any]]]]:
    engine = create_async_engine(dsn.replace("postgresql://", f"postgresql+{driver}://"), pool_size=2, max_overflow=0)
    db: Any = async_sessionmaker(engine) if session else engine

    async def write(where: Any, sql: str) -> Any:
        return (await where.execute(sqlalchemy.text(sql))).scalar()

    try:
        yield (lambda **settings: quiesce.sqlalchemy.IdempotencyKeys(db, **settings)), write
    finally:
        await engine.dispose()


def _door(dsn: str, driver: str) -> "AbstractAsyncContextManager[Any]":
    if driver == "asyncpg":
        return _asyncpg(dsn)
    if driver == "psycopg":
        return _psycopg(dsn)
    kind, _, below = driver.partition("+")
    return _sqlalchemy(dsn, below, kind == "session")


@pytest.fixture(params=DRIVERS)
async def store(request: pytest.FixtureRequest, store_database: str) -> AsyncIterator[Store]:
    beside = await asyncpg.connect(store_database, timeout=20)
    await beside.execute(TABLE)
    try:
        async with _door(store_database, request.param) as (keys, write):
            yield Store(keys, write, beside.fetchval)
    finally:
        await beside.close(timeout=5)


INSERT = "INSERT INTO effect (name) VALUES ('x') RETURNING id"
ORPHAN = "INSERT INTO effect (name, parent) VALUES ('x', 99) RETURNING id"
EFFECTS = "SELECT count(*) FROM effect"
KEYS = "SELECT count(*) FROM idempotency_key"


async def claimed(keys: Any, request: KeyedRequest | None = ONE) -> KeyClaim:
    claim = await keys.claim(request, WITHIN)
    assert not isinstance(claim, KeptResponse | NoClaim)
    return claim  # type: ignore[no-any-return]


async def test_K35_a_held_key_is_answered_once_with_what_was_written(store: Store) -> None:
    keys = store.keys(hold="transaction")
    claim = await claimed(keys)
    async with claim.transaction() as connection:
        await store.write(connection, INSERT)
    # Whoever comes meanwhile learns it at once. It sees nothing yet of the other body, nor of the effect.
    assert await keys.claim(ONE, WITHIN) is NoClaim.OUTSTANDING
    with contextlib.suppress(ValueError):
        async with claim.transaction() as connection:
            await store.write(connection, INSERT)
            raise ValueError("a fault of the handler takes back this block alone")
    assert (claim.effect, claim.open, await store.look(EFFECTS)) == (True, False, 0)
    await claim.settle(ANSWER)
    await claim.free()

    assert await keys.claim(ONE, WITHIN) == ANSWER
    assert await keys.claim(OTHER_BODY, WITHIN) is NoClaim.OTHER_REQUEST
    assert await store.look(EFFECTS) == 1
    of_bob = await claimed(keys, KeyedRequest("bob", "one", b"f" * 32))
    await of_bob.free()


@pytest.mark.parametrize("hold", ["transaction", "lease"])
async def test_K39_what_fails_at_the_commit_leaves_nothing_and_frees_the_key(store: Store, hold: str) -> None:
    keys = store.keys(hold=hold)
    claim = await claimed(keys)
    async with claim.transaction() as connection:
        await store.write(connection, ORPHAN)
    with pytest.raises(Exception, match="effect_parent_fkey"):
        await claim.settle(ANSWER)
    assert (await store.look(EFFECTS), await store.look(KEYS)) == (0, 0)
    # Both connections of the pool are there again.
    first, second = await claimed(keys), await claimed(keys, KeyedRequest("", "two", b""))
    await first.free()
    await second.free()
    assert await store.look(KEYS) == 0


async def test_a_lease_is_fenced_renewed_and_taken_over(store: Store) -> None:
    keys = store.keys(hold="lease", lease=1000)
    first = await claimed(keys)
    assert await first.renew()
    assert await keys.claim(ONE, WITHIN) is NoClaim.OUTSTANDING
    assert await keys.claim(OTHER_BODY, WITHIN) is NoClaim.OTHER_REQUEST
    await store.look("UPDATE idempotency_key SET leased_till = now() - interval '1 s'")

    second = await claimed(keys)
    assert (first.attempt, second.attempt) == (1, 2)
    assert not await first.renew()
    with pytest.raises(KeyLost):
        async with first.transaction():
            pytest.fail("it may not write any more")
    with pytest.raises(KeyLost):
        await first.settle(ANSWER)
    await first.free()
    async with second.transaction() as connection:
        await store.write(connection, INSERT)
    # Its lease does not matter while it is in its transaction.
    await store.look("SELECT 1")
    await second.settle(KeptResponse(200, (), None, "streamed"))
    assert await keys.claim(ONE, WITHIN) == KeptResponse(200, (), None, "streamed")
    assert await store.look(EFFECTS) == 1


async def test_a_lease_without_a_transaction_and_a_request_without_a_key(store: Store) -> None:
    keys = store.keys(hold="lease")
    claim = await claimed(keys)
    await claim.settle(ANSWER)
    assert await keys.claim(ONE, WITHIN) == ANSWER
    for settled in (True, False):
        keyless = await claimed(keys, None)
        async with keyless.transaction() as connection:
            await store.write(connection, INSERT)
        await (keyless.settle(None) if settled else keyless.free())
    assert (await store.look(EFFECTS), await store.look(KEYS)) == (1, 1)


async def test_isolation_is_of_the_request_alone_and_no_connection_is_told(store: Store) -> None:
    shown = "SELECT current_setting('transaction_isolation')"
    for isolation, level in (("serializable", "serializable"), (None, "read committed")):
        keys = store.keys(hold="transaction", isolation=isolation)
        claims = [await claimed(keys, KeyedRequest("", f"{isolation}{n}", b"")) for n in range(2)]
        with pytest.raises(Unavailable):
            await keys.claim(ONE, 0.2)
        for claim in claims:
            async with claim.transaction() as connection:
                assert await store.write(connection, shown) == level
            await claim.free()


async def test_a_missing_table_names_the_command(store: Store) -> None:
    await store.look("ALTER TABLE idempotency_key RENAME TO elsewhere")
    try:
        with pytest.raises(SchemaMissing, match="quiesce inbox schema apply"):
            await store.keys().claim(ONE, WITHIN)
    finally:
        await store.look("ALTER TABLE elsewhere RENAME TO idempotency_key")


@pytest.mark.parametrize("hold", ["transaction", "lease"])
async def test_a_claim_that_is_cancelled_again_and_again_loses_no_connection(store: Store, hold: str) -> None:
    waiting = (
        "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'idempotency_key'::regclass "
        "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    )
    keys = store.keys(hold=hold)
    for _ in range(3):
        await store.look("BEGIN")
        await store.look("LOCK TABLE idempotency_key")
        try:
            # One of anyio's cancels comes again at each await, until the scope is left: such is a timeout around it.
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as group:
                    group.start_soon(keys.claim, ONE, WITHIN)
                    async with asyncio.timeout(WITHIN):
                        while not await store.look(waiting):
                            await asyncio.sleep(0.01)
                    scope.cancel()
        finally:
            await store.look("ROLLBACK")

    both = [await claimed(keys, KeyedRequest("alice", key, b"f" * 32)) for key in ("two", "three")]
    for claim in both:
        await claim.free()
