"""What the handlers that run once need of each library: a database, and a statement in their transaction.

Run as a program it handles one record and dies on the way: `python once_families.py FAMILY DSN POINT`.
"""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import asyncpg
import sqlalchemy as sa
from psycopg_pool import AsyncConnectionPool
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

import quiesce.postgres as q_asyncpg
import quiesce.psycopg as q_psycopg
import quiesce.sqlalchemy as q_sqlalchemy
from quiesce.inbox import Record

FAMILIES = ["asyncpg", "psycopg", "SQLAlchemy engine", "SQLAlchemy session", "SQLAlchemy psycopg engine"]


def record(event_id: str | None, offset: int = 7, **headers: bytes) -> Record:
    given = tuple(headers.items()) if event_id is None else (("id", event_id.encode()), *headers.items())
    return Record("products", 2, offset, b"key", b"value", given)


@dataclass
class Family:
    """`once` and `once_batch` are those of the library, and `db` what they take."""

    db: Any
    once: Any
    once_batch: Any

    async def run(self, connection: Any, sql: str) -> None:
        if isinstance(connection, asyncpg.pool.PoolConnectionProxy):
            await connection.execute(sql)
        elif self.once is q_psycopg.once:
            await connection.execute(sql.encode())
        else:
            await connection.execute(sa.text(sql))

    async def effect(self, record: Record, connection: Any) -> None:
        await self.run(connection, f"INSERT INTO effect VALUES ('{record.event_id}')")


@contextlib.asynccontextmanager
async def opened(name: str, dsn: str, timeout: float = 20.0) -> AsyncIterator[Family]:
    if name == "asyncpg":
        async with asyncpg.create_pool(dsn, min_size=0, max_size=2) as pool:
            yield Family(pool, q_asyncpg.once, q_asyncpg.once_batch)
    elif name == "psycopg":
        async with AsyncConnectionPool(dsn, min_size=0, max_size=2, timeout=timeout, open=False) as of_psycopg:
            yield Family(of_psycopg, q_psycopg.once, q_psycopg.once_batch)
    else:
        driver = "psycopg" if "psycopg" in name else "asyncpg"
        engine = create_async_engine(dsn.replace("postgresql://", f"postgresql+{driver}://"))
        db: Any = async_sessionmaker(engine) if "session" in name else engine
        yield Family(db, q_sqlalchemy.once, q_sqlalchemy.once_batch)
        await engine.dispose()


async def die_at(name: str, dsn: str, point: str) -> None:
    async with opened(name, dsn) as family:

        async def handler(record: Record, connection: Any) -> None:
            await family.effect(record, connection)
            if point == "before":
                os.kill(os.getpid(), 9)

        await family.once(family.db, "orders", handler)(record("e1"))
        os.kill(os.getpid(), 9)


if __name__ == "__main__":
    asyncio.run(die_at(*sys.argv[1:]))
