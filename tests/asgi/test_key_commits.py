"""Handlers that end their request's transaction themselves: by SQLAlchemy's sessions, its connections, or past it."""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any

import asyncpg
import psycopg
import pytest
import sqlalchemy as sa
from fastapi import FastAPI
from key_scene import TABLE, Answer, Shop, serving
from psycopg_pool import AsyncConnectionPool
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from starlette.middleware import Middleware
from starlette.responses import JSONResponse, Response

import quiesce.postgres
import quiesce.psycopg
import quiesce.sqlalchemy
from quiesce.asgi import Idempotency, IdempotencyMiddleware
from quiesce.errors import SettingsError
from quiesce.inbox.key_store import Hold
from quiesce.inbox.keyed_request import KeyedRequest

if TYPE_CHECKING:
    from quiesce.testing.postgres_address import PostgresAddress

pytestmark = pytest.mark.needs("postgres")

INSERT = "INSERT INTO effect (name) VALUES ('x') RETURNING id"
ONE = KeyedRequest("", "one", b"")
DRIVERS = pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])

Handler = Callable[[Idempotency], Awaitable[Any]]
Open = Callable[..., contextlib.AbstractAsyncContextManager[Shop]]


class Base(DeclarativeBase):
    pass


class Effect(Base):
    __tablename__ = "effect"

    id: Mapped[int] = mapped_column(sa.Identity(always=True), primary_key=True)
    name: Mapped[str]


@pytest.fixture(scope="module")
def shop_database(postgres: "PostgresAddress", database_template: str) -> Iterator[str]:
    """One for all of these tests; each begins with empty tables."""
    name = f"quiesce_test_{uuid.uuid4().hex[:12]}"
    yield postgres.create_database(name, database_template)
    postgres.drop_database(name)


@contextlib.asynccontextmanager
async def engine_of(dsn: str, driver: str, **settings: Any) -> AsyncIterator[Any]:
    url = dsn.replace("postgresql://", f"postgresql+{driver}://")
    engine = create_async_engine(url, pool_size=3, max_overflow=0, **settings)
    try:
        yield engine
    finally:
        await engine.dispose()


@pytest.fixture
def shop(shop_database: str) -> Open:
    """A server with one handler, and keys in what is given."""

    @contextlib.asynccontextmanager
    async def opened(keys: Any, handler: Handler, wait: float = 40.0) -> AsyncIterator[Shop]:
        idempotency = Idempotency(keys, scope="none", wait=wait)
        app = FastAPI(middleware=[Middleware(IdempotencyMiddleware, idempotency=idempotency)])

        @app.post("/", status_code=201)
        async def answer() -> Any:
            return await handler(idempotency)

        async with asyncpg.create_pool(shop_database, min_size=1, max_size=2, timeout=20) as db:
            await db.execute(TABLE)
            async with serving(app, db) as here:
                yield here

    return opened


async def fifty(here: Shop) -> list[Answer]:
    return await asyncio.gather(*(here.post("/", "one", b"{}") for _ in range(50)))


async def commits(session: AsyncSession) -> int:
    session.add(row := Effect(name="order"))
    await session.commit()
    await session.refresh(row)
    return row.id


async def commits_twice(session: AsyncSession) -> int:
    made = await commits(session)
    await session.execute(sa.text("UPDATE effect SET name = 'paid' WHERE id = :id"), {"id": made})
    await session.commit()
    return made


async def begins_and_commits(session: AsyncSession) -> int:
    async with session.begin():
        session.add(row := Effect(name="order"))
        await session.flush()
        return row.id


async def commits_in_sync_code(session: AsyncSession) -> int:
    def sync(inner: Session) -> int:
        inner.add(row := Effect(name="order"))
        inner.commit()
        return row.id

    return await session.run_sync(sync)


async def rolls_back_and_writes(session: AsyncSession) -> int:
    session.add(Effect(name="thought better of"))
    await session.flush()
    await session.rollback()
    return await commits(session)


async def closes_and_writes(session: AsyncSession) -> int:
    made = await commits(session)
    await session.execute(sa.text("INSERT INTO effect (name) VALUES ('not committed, and closed')"))
    await session.close()
    return made


async def leaves_a_savepoint_open(session: AsyncSession) -> int:
    await session.begin_nested()
    session.add(row := Effect(name="order"))
    await session.flush()
    return row.id


WAYS = [
    commits,
    commits_twice,
    begins_and_commits,
    commits_in_sync_code,
    rolls_back_and_writes,
    closes_and_writes,
    leaves_a_savepoint_open,
]


@DRIVERS
@pytest.mark.parametrize(
    ("way", "hold"),
    [*((way, "transaction") for way in WAYS), (commits_twice, "lease"), (rolls_back_and_writes, "lease")],
)
async def test_K35_a_session_that_its_handler_commits_has_one_effect_all_the_same(
    shop: Open, shop_database: str, driver: str, way: Callable[[AsyncSession], Awaitable[int]], hold: Hold
) -> None:
    async def handler(idempotency: Idempotency) -> dict[str, int]:
        async with idempotency.transaction() as session:
            made = await way(session)
            # Were it committed by now, another attempt could take the key here.
            await asyncio.sleep(0)
        return {"id": made}

    async with engine_of(shop_database, driver) as engine:
        keys = quiesce.sqlalchemy.IdempotencyKeys(async_sessionmaker(engine), hold=hold)
        async with shop(keys, handler) as here:
            answers = await fifty(here)
            assert {answer.status for answer in answers} == {201}
            assert len({answer.body for answer in answers}) == 1
            assert sum(not answer.replayed for answer in answers) == 1
            assert (await here.effects(), await here.keys()) == (1, [("one", "answered")])


@DRIVERS
async def test_K39_what_a_handler_has_committed_in_its_session_goes_with_its_answer(
    shop: Open, shop_database: str, driver: str
) -> None:
    answers = [503, 500, 201]

    async def handler(idempotency: Idempotency) -> Response:
        async with idempotency.transaction() as session:
            await commits(session)
        return JSONResponse({}, answers.pop(0))

    async with engine_of(shop_database, driver) as engine:
        keys = quiesce.sqlalchemy.IdempotencyKeys(async_sessionmaker(engine), hold="transaction")
        async with shop(keys, handler) as here:
            told = [((await here.post("/", "one")).status, await here.effects()) for _ in range(3)]
            assert told == [(503, 0), (500, 0), (201, 1)]


async def test_what_a_block_has_loaded_is_there_after_it_and_it_takes_back_its_own_writes_alone(
    shop: Open, shop_database: str
) -> None:
    async def handler(idempotency: Idempotency) -> dict[str, str]:
        async with idempotency.transaction() as session:
            session.add(row := Effect(name="first"))
        names = [row.name]
        with contextlib.suppress(ZeroDivisionError):
            async with idempotency.transaction() as session:
                session.add(Effect(name="taken back"))
                await session.flush()
                raise ZeroDivisionError
        with contextlib.suppress(sa.exc.DBAPIError):
            async with idempotency.transaction() as session:
                session.add(Effect(id=99, name="the database makes the ids"))
                await session.flush()
        async with idempotency.transaction() as session:
            # After a rollback a session loads anew, as ever.
            names.append((await session.get_one(Effect, 1)).name)
            session.add(last := Effect(name="last"))
        return {"names": f"{' '.join(names)} {row.id} {last.name}"}

    async with engine_of(shop_database, "asyncpg") as engine:
        keys = quiesce.sqlalchemy.IdempotencyKeys(async_sessionmaker(engine))
        async with shop(keys, handler) as here:
            assert (await here.post("/", "one")).body == b'{"names":"first first 1 last"}'
            assert await here.effects() == 2


async def test_a_block_that_commits_and_fails_has_its_whole_request_rolled_back(shop: Open, shop_database: str) -> None:
    async def handler(idempotency: Idempotency) -> str:
        with contextlib.suppress(ZeroDivisionError):
            async with idempotency.transaction() as session:
                await commits(session)
                raise ZeroDivisionError
        return "nothing is wrong"

    async with engine_of(shop_database, "asyncpg") as engine:
        keys = quiesce.sqlalchemy.IdempotencyKeys(async_sessionmaker(engine), hold="transaction")
        async with shop(keys, handler) as here:
            answer = await here.post("/", "one")
            assert (answer.status, answer.problem) == (500, "not-committed")
            assert (await here.effects(), await here.keys()) == (0, [])


@DRIVERS
@pytest.mark.parametrize("early", [True, False])
async def test_K37_a_session_that_loses_its_connection_frees_the_key_and_costs_the_pool_nothing(
    shop: Open, shop_database: str, driver: str, early: bool
) -> None:
    lost = 0

    async def handler(idempotency: Idempotency) -> str:
        nonlocal lost
        async with idempotency.transaction() as session:
            await commits(session)
            if lost < 4:
                lost += 1
                process = await session.scalar(sa.text("SELECT pg_backend_pid()"))
                async with asyncpg.create_pool(shop_database, min_size=0, max_size=1, timeout=20) as beside:
                    await beside.execute("SELECT pg_terminate_backend($1, 20000)", process)
                if early:
                    await commits(session)
        return "done"

    async with engine_of(shop_database, driver) as engine:
        keys = quiesce.sqlalchemy.IdempotencyKeys(async_sessionmaker(engine), hold="transaction")
        async with shop(keys, handler) as here:
            for _ in range(4):
                assert (await here.post("/", "one")).status == 500
                assert (await here.effects(), await here.keys()) == (0, [])
            assert (await here.post("/", "one")).status == 201
            assert await here.effects() == 1


class Routing(Session):
    """Chooses by itself where a statement goes."""

    engine: sa.Engine

    def get_bind(self, *args: Any, **settings: Any) -> sa.Engine:
        return self.engine


async def test_K35_a_session_that_chooses_its_engine_by_itself_joins_too(shop: Open, shop_database: str) -> None:
    async def handler(idempotency: Idempotency) -> int:
        async with idempotency.transaction() as session:
            return await commits(session)

    async with engine_of(shop_database, "asyncpg") as engine:
        Routing.engine = engine.sync_engine
        keys = quiesce.sqlalchemy.IdempotencyKeys(async_sessionmaker(sync_session_class=Routing), hold="transaction")
        async with shop(keys, handler) as here:
            assert {answer.status for answer in await fifty(here)} == {201}
            assert await here.effects() == 1


async def commits_it(connection: AsyncConnection) -> None:
    await connection.commit()


async def rolls_it_back(connection: AsyncConnection) -> None:
    await connection.rollback()


async def closes_it(connection: AsyncConnection) -> None:
    await connection.close()


async def says_commit(connection: AsyncConnection) -> None:
    await connection.execute(sa.text("-- so be it\n commit"))


async def says_rollback(connection: AsyncConnection) -> None:
    await connection.exec_driver_sql("/* no */ ROLLBACK WORK")


async def commits_and_closes_it(connection: AsyncConnection) -> None:
    try:
        await connection.commit()
    finally:
        await connection.close()


ENDS = [commits_it, commits_and_closes_it, rolls_it_back, closes_it, says_commit, says_rollback]


@DRIVERS
@pytest.mark.parametrize("kept", [False, True], ids=["told", "kept to itself"])
@pytest.mark.parametrize("end", ENDS)
async def test_K35_a_connection_whose_handler_ends_its_transaction_is_refused_before_anything_is_committed(
    shop: Open,
    shop_database: str,
    driver: str,
    end: Callable[[AsyncConnection], Awaitable[None]],
    kept: bool,
) -> None:
    attempts = 0

    async def handler(idempotency: Idempotency) -> str:
        nonlocal attempts
        attempts += 1
        async with idempotency.transaction() as connection:
            await connection.execute(sa.text(INSERT))
            # What sounds alike is none of it.
            await connection.execute(sa.text("SAVEPOINT mine"))
            await connection.execute(sa.text("ROLLBACK TO SAVEPOINT mine"))
            if attempts <= 5:
                # A rollback is not refused by itself, and its block is.
                with contextlib.suppress(RuntimeError) if kept else contextlib.nullcontext():
                    await end(connection)
        return "done"

    async with engine_of(shop_database, driver) as engine:
        keys = quiesce.sqlalchemy.IdempotencyKeys(engine, hold="transaction")
        async with shop(keys, handler) as here:
            answers = [await here.post("/", "one") for _ in range(5)]
            assert {answer.status for answer in answers} == {500}
            # The pool has three connections: all of them are there again.
            assert (await here.effects(), await here.keys()) == (0, [])
            assert {answer.status for answer in await fifty(here)} == {201}
            assert (await here.effects(), await here.keys()) == (1, [("one", "answered")])


@DRIVERS
async def test_K35_the_connection_of_a_session_is_refused_as_well(shop: Open, shop_database: str, driver: str) -> None:
    async def handler(idempotency: Idempotency) -> str:
        async with idempotency.transaction() as session:
            await session.execute(sa.text(INSERT))
            await (await session.connection()).commit()
        return "done"

    async with engine_of(shop_database, driver) as engine:
        keys = quiesce.sqlalchemy.IdempotencyKeys(async_sessionmaker(engine), hold="transaction")
        async with shop(keys, handler) as here:
            assert {answer.status for answer in await fifty(here)} == {500}
            assert (await here.effects(), await here.keys()) == (0, [])


async def test_sessions_of_a_connection_and_engines_in_autocommit_are_refused(shop: Open, shop_database: str) -> None:
    async with engine_of(shop_database, "asyncpg", isolation_level="AUTOCOMMIT") as engine:
        with pytest.raises(SettingsError, match="AUTOCOMMIT"):
            await quiesce.sqlalchemy.IdempotencyKeys(engine, hold="transaction").claim(ONE, 20)
        async with engine.connect() as connection:
            keys = quiesce.sqlalchemy.IdempotencyKeys(async_sessionmaker(connection))
            with pytest.raises(SettingsError, match="bound to a connection"):
                await keys.claim(ONE, 20)


async def test_K35_psycopg_refuses_a_handlers_commit_and_the_transaction_goes_on(
    shop: Open, shop_database: str
) -> None:
    async def handler(idempotency: Idempotency) -> str:
        async with idempotency.transaction() as connection:
            await connection.execute(INSERT)
            with pytest.raises(psycopg.ProgrammingError, match="forbidden"):
                await connection.commit()
            with pytest.raises(psycopg.ProgrammingError, match="forbidden"):
                await connection.rollback()
        return "done"

    async with AsyncConnectionPool(shop_database, min_size=0, max_size=3, open=False) as pool:
        keys = quiesce.psycopg.IdempotencyKeys(pool, hold="transaction")
        async with shop(keys, handler) as here:
            assert {answer.status for answer in await fifty(here)} == {201}
            assert (await here.effects(), await here.keys()) == (1, [("one", "answered")])


@contextlib.asynccontextmanager
async def _past_us(dsn: str, store: str) -> AsyncIterator[tuple[Any, Callable[[Any], Awaitable[None]]]]:
    """A store, and a handler's write that is committed where nobody but the server can know of it."""

    async def by_sql(connection: Any) -> None:
        await connection.execute(INSERT)
        await connection.execute("COMMIT")

    async def by_the_drivers_own(connection: AsyncConnection) -> None:
        await connection.execute(sa.text(INSERT))
        driver = (await connection.get_raw_connection()).driver_connection
        assert driver is not None
        await driver.execute("COMMIT")

    if store == "asyncpg":
        async with asyncpg.create_pool(dsn, min_size=0, max_size=3) as db:
            yield quiesce.postgres.IdempotencyKeys(db, hold="transaction"), by_sql
    elif store == "psycopg":
        async with AsyncConnectionPool(dsn, min_size=0, max_size=3, open=False) as pool:
            yield quiesce.psycopg.IdempotencyKeys(pool, hold="transaction"), by_sql
    else:
        async with engine_of(dsn, store.partition("+")[2]) as engine:
            yield quiesce.sqlalchemy.IdempotencyKeys(engine, hold="transaction"), by_the_drivers_own


@pytest.mark.parametrize("store", ["asyncpg", "psycopg", "sqlalchemy+asyncpg", "sqlalchemy+psycopg"])
async def test_K35_a_commit_that_goes_past_the_library_has_one_effect_and_no_answer_to_keep(
    shop: Open, shop_database: str, store: str
) -> None:
    async with _past_us(shop_database, store) as (keys, write_and_commit):

        async def handler(idempotency: Idempotency) -> str:
            async with idempotency.transaction() as connection:
                await write_and_commit(connection)
            return "done"

        async with shop(keys, handler, wait=1.0) as here:
            answers = await fifty(here)
            # The block finds its savepoint gone. What the handler's request comes to is known to nobody then.
            assert sorted({answer.status for answer in answers}) == [409, 500]
            again = await here.post("/", "one", b"{}")
            assert (again.status, again.problem) == (409, "idempotency-key-in-use")
            assert (await here.effects(), await here.keys()) == (1, [("one", "claimed")])
