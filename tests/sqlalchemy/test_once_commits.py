"""A handler of records that ends its transaction itself: its mark would be kept, and the rest of its effect be lost."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from quiesce.inbox import Record
from quiesce.sqlalchemy import once, once_batch

pytestmark = pytest.mark.needs("postgres")

INSERT = sa.text("INSERT INTO effect VALUES ('half')")


@pytest.fixture(params=["asyncpg", "psycopg"])
async def engine(request: pytest.FixtureRequest, database: str) -> AsyncIterator[Any]:
    # One connection: if it is not given back in order, nothing goes any more.
    url = database.replace("postgresql://", f"postgresql+{request.param}://")
    made = create_async_engine(url, pool_size=1, max_overflow=0, pool_timeout=20)
    async with made.begin() as connection:
        await connection.execute(sa.text("CREATE TABLE effect (what text)"))
    yield made
    await made.dispose()


async def commits(where: Any) -> None:
    await where.commit()


async def rolls_back(where: Any) -> None:
    await where.rollback()


async def commits_and_closes(where: Any) -> None:
    try:
        await where.commit()
    finally:
        await where.close()


async def says_commit(where: Any) -> None:
    await where.execute(sa.text("COMMIT"))


@pytest.mark.parametrize("in_session", [False, True])
@pytest.mark.parametrize("in_batches", [False, True])
@pytest.mark.parametrize("kept", [False, True], ids=["told", "kept to itself"])
@pytest.mark.parametrize("end", [commits, rolls_back, commits_and_closes, says_commit])
async def test_K29_a_handler_that_ends_its_transaction_has_neither_mark_nor_half_an_effect(
    engine: Any, in_session: bool, in_batches: bool, kept: bool, end: Callable[[Any], Awaitable[None]]
) -> None:
    ends = True

    async def handler(given: Any, where: Any) -> None:
        await where.execute(INSERT)
        if ends:
            with contextlib.suppress(RuntimeError) if kept else contextlib.nullcontext():
                await end(where)
        else:
            await where.execute(INSERT)

    async def rows(table: str) -> Any:
        async with engine.connect() as connection:
            return (await connection.execute(sa.text(f"SELECT count(*) FROM {table}"))).scalar()

    db = async_sessionmaker(engine) if in_session else engine
    handle = once_batch(db, "c", handler) if in_batches else once(db, "c", handler)
    record = Record("orders", 0, 1, b"k", b"v", (("id", b"e1"),), 0.0)
    given: Any = [record] if in_batches else record
    with pytest.raises(RuntimeError, match="committed with its mark"):
        await handle(given)
    assert (await rows("effect"), await rows("inbox_entry")) == (0, 0)
    ends = False
    assert await handle(given) is None
    assert (await rows("effect"), await rows("inbox_entry")) == (2, 1)


class Base(DeclarativeBase):
    pass


class Unique(Base):
    __tablename__ = "only_once"

    name: Mapped[str] = mapped_column(primary_key=True)


@pytest.mark.parametrize("kept", [False, True], ids=["told", "kept to itself"])
async def test_K28_a_flush_that_fails_is_the_error_that_it_is_and_leaves_no_mark(engine: Any, kept: bool) -> None:
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
        await connection.execute(sa.text("INSERT INTO only_once VALUES ('there')"))
    processes: list[int] = []

    async def handler(record: Record, session: AsyncSession) -> None:
        processes.append(await session.scalar(sa.text("SELECT pg_backend_pid()")) or 0)
        session.add(Unique(name="there"))
        with contextlib.suppress(sa.exc.IntegrityError) if kept else contextlib.nullcontext():
            await session.flush()

    handle = once(async_sessionmaker(engine), "c", handler)
    for _ in range(2):
        with pytest.raises(RuntimeError if kept else sa.exc.IntegrityError):
            await handle(Record("orders", 0, 1, b"k", b"v", (("id", b"e1"),), 0.0))
    async with engine.connect() as connection:
        assert (await connection.execute(sa.text("SELECT count(*) FROM inbox_entry"))).scalar() == 0
    assert len(set(processes)) == 1, "it costs the pool its connection"
