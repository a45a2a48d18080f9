"""One writer's door a library: opens a connection, and does with it what every test of `enqueue` needs."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol
from uuid import UUID

import asyncpg
import psycopg
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

import quiesce.postgres as q_asyncpg
import quiesce.psycopg as q_psycopg
import quiesce.sqlalchemy as q_sqlalchemy
from quiesce.outbox import OutboxEvent


class Door(Protocol):
    """A connection of one library. `transaction` commits at its end, or rolls back on an error."""

    def transaction(self) -> contextlib.AbstractAsyncContextManager[None]: ...

    def savepoint(self) -> contextlib.AbstractAsyncContextManager[None]: ...

    async def run(self, sql: str) -> None: ...

    async def enqueue(self, event: OutboxEvent, **options: int) -> UUID: ...

    async def enqueue_many(self, events: Sequence[OutboxEvent], **options: int) -> list[UUID]: ...

    async def inbox_entry(self, consumer: str, event_id: str | UUID | None) -> bool: ...

    async def inbox_entries(self, consumer: str, event_ids: Sequence[str]) -> set[str]: ...

    duplicate: type[Exception]
    """What the library raises for a unique violation."""


class Asyncpg:
    duplicate: type[Exception] = asyncpg.UniqueViolationError

    def __init__(self, connection: "asyncpg.Connection[Any]") -> None:
        self.connection = connection

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        async with self.connection.transaction():
            yield

    savepoint = transaction

    async def run(self, sql: str) -> None:
        await self.connection.execute(sql)

    async def enqueue(self, event: OutboxEvent, **options: int) -> UUID:
        return await q_asyncpg.enqueue(self.connection, event, **options)

    async def enqueue_many(self, events: Sequence[OutboxEvent], **options: int) -> list[UUID]:
        return await q_asyncpg.enqueue_many(self.connection, events, **options)

    async def inbox_entry(self, consumer: str, event_id: str | UUID | None) -> bool:
        return await q_asyncpg.inbox_entry(self.connection, consumer, event_id)

    async def inbox_entries(self, consumer: str, event_ids: Sequence[str]) -> set[str]:
        return await q_asyncpg.inbox_entries(self.connection, consumer, event_ids)


class PsycopgAsync:
    duplicate: type[Exception] = psycopg.errors.UniqueViolation

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self.connection = connection

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        async with self.connection.transaction():
            yield

    savepoint = transaction

    async def run(self, sql: str) -> None:
        await self.connection.execute(sql.encode())

    async def enqueue(self, event: OutboxEvent, **options: int) -> UUID:
        return await q_psycopg.enqueue(self.connection, event, **options)

    async def enqueue_many(self, events: Sequence[OutboxEvent], **options: int) -> list[UUID]:
        return await q_psycopg.enqueue_many(self.connection, events, **options)

    async def inbox_entry(self, consumer: str, event_id: str | UUID | None) -> bool:
        return await q_psycopg.inbox_entry(self.connection, consumer, event_id)

    async def inbox_entries(self, consumer: str, event_ids: Sequence[str]) -> set[str]:
        return await q_psycopg.inbox_entries(self.connection, consumer, event_ids)


class PsycopgSync:
    duplicate: type[Exception] = psycopg.errors.UniqueViolation

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        with self.connection.transaction():
            yield

    savepoint = transaction

    async def run(self, sql: str) -> None:
        self.connection.execute(sql.encode())

    async def enqueue(self, event: OutboxEvent, **options: int) -> UUID:
        return q_psycopg.enqueue(self.connection, event, **options)

    async def enqueue_many(self, events: Sequence[OutboxEvent], **options: int) -> list[UUID]:
        return q_psycopg.enqueue_many(self.connection, events, **options)

    async def inbox_entry(self, consumer: str, event_id: str | UUID | None) -> bool:
        return q_psycopg.inbox_entry(self.connection, consumer, event_id)

    async def inbox_entries(self, consumer: str, event_ids: Sequence[str]) -> set[str]:
        return q_psycopg.inbox_entries(self.connection, consumer, event_ids)


class AlchemySync:
    duplicate: type[Exception] = sa.exc.IntegrityError

    def __init__(self, where: Session | sa.Connection) -> None:
        self.where = where

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        with self.where.begin():
            yield

    @contextlib.asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        with self.where.begin_nested():
            yield

    async def run(self, sql: str) -> None:
        self.where.execute(sa.text(sql))

    async def enqueue(self, event: OutboxEvent, **options: int) -> UUID:
        return q_sqlalchemy.enqueue(self.where, event, **options)

    async def enqueue_many(self, events: Sequence[OutboxEvent], **options: int) -> list[UUID]:
        return q_sqlalchemy.enqueue_many(self.where, events, **options)

    async def inbox_entry(self, consumer: str, event_id: str | UUID | None) -> bool:
        return q_sqlalchemy.inbox_entry(self.where, consumer, event_id)

    async def inbox_entries(self, consumer: str, event_ids: Sequence[str]) -> set[str]:
        return q_sqlalchemy.inbox_entries(self.where, consumer, event_ids)


class AlchemyAsync:
    duplicate: type[Exception] = sa.exc.IntegrityError

    def __init__(self, where: AsyncSession | AsyncConnection) -> None:
        self.where = where

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        async with self.where.begin():
            yield

    @contextlib.asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        async with self.where.begin_nested():
            yield

    async def run(self, sql: str) -> None:
        await self.where.execute(sa.text(sql))

    async def enqueue(self, event: OutboxEvent, **options: int) -> UUID:
        return await q_sqlalchemy.enqueue(self.where, event, **options)

    async def enqueue_many(self, events: Sequence[OutboxEvent], **options: int) -> list[UUID]:
        return await q_sqlalchemy.enqueue_many(self.where, events, **options)

    async def inbox_entry(self, consumer: str, event_id: str | UUID | None) -> bool:
        return await q_sqlalchemy.inbox_entry(self.where, consumer, event_id)

    async def inbox_entries(self, consumer: str, event_ids: Sequence[str]) -> set[str]:
        return await q_sqlalchemy.inbox_entries(self.where, consumer, event_ids)


NAMES = [
    "asyncpg",
    "psycopg async",
    "psycopg async autocommit",
    "psycopg sync",
    "psycopg sync autocommit",
    "SQLAlchemy psycopg connection",
    "SQLAlchemy psycopg session",
    "SQLAlchemy asyncpg connection",
    "SQLAlchemy asyncpg session",
    "SQLAlchemy psycopg async session",
]


@contextlib.asynccontextmanager
async def opened(name: str, dsn: str, *, commits_by_itself: bool = False) -> AsyncIterator[Door]:
    """The door of this name. `commits_by_itself`: without an open transaction every statement is one."""
    library, _, kind = name.partition(" ")
    options: dict[str, Any] = {"isolation_level": "AUTOCOMMIT"} if commits_by_itself else {}
    if library == "asyncpg":
        connection = await asyncpg.connect(dsn)
        yield Asyncpg(connection)
        await connection.close()
    elif library == "psycopg" and "async" in kind.split():
        async with await psycopg.AsyncConnection.connect(
            dsn, autocommit=commits_by_itself or "autocommit" in kind
        ) as of_psycopg:
            yield PsycopgAsync(of_psycopg)
    elif library == "psycopg":
        with psycopg.connect(dsn, autocommit=commits_by_itself or "autocommit" in kind) as blocking:
            yield PsycopgSync(blocking)
    else:
        driver = "asyncpg" if "asyncpg" in kind else "psycopg"
        url = dsn.replace("postgresql://", f"postgresql+{driver}://")
        if "async" in kind.split() or driver == "asyncpg":
            engine = create_async_engine(url, **options)
            if "session" in kind:
                async with AsyncSession(engine) as session:
                    yield AlchemyAsync(session)
            else:
                async with engine.connect() as of_engine:
                    yield AlchemyAsync(of_engine)
            await engine.dispose()
        else:
            blocking_engine = sa.create_engine(url, **options)
            if "session" in kind:
                with Session(blocking_engine) as blocking_session:
                    yield AlchemySync(blocking_session)
            else:
                with blocking_engine.connect() as blocking_connection:
                    yield AlchemySync(blocking_connection)
            blocking_engine.dispose()
    await asyncio.sleep(0)
