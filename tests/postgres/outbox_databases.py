"""Databases with the outbox's tables, and stores on them that are closed in the end."""

import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

from quiesce.lifecycle.deadline import Deadline
from quiesce.postgres import OutboxLog, OutboxRows, connect, schema
from quiesce.postgres.driver import Connection
from quiesce.testing.postgres_address import PostgresAddress

OpenStore = Callable[..., Awaitable[OutboxRows]]
"""Opens a store on the test's outbox; takes what `OutboxRows` takes after the DSN."""

OpenLog = Callable[..., Awaitable[OutboxLog]]
"""The same for `OutboxLog`."""


@pytest.fixture(scope="session")
def outbox_database(postgres: PostgresAddress) -> Iterator[str]:
    """One database for all tests of a worker: emptying it is cheaper than making one for each."""
    name = f"quiesce_outbox_{uuid.uuid4().hex[:12]}"
    dsn = postgres.create_database(name)
    postgres.execute(schema.show(), name)
    yield dsn
    postgres.drop_database(name)


@pytest.fixture
def bare(postgres: PostgresAddress) -> Iterator[str]:
    """The DSN of a database without any tables."""
    name = f"quiesce_bare_{uuid.uuid4().hex[:12]}"
    yield postgres.create_database(name)
    postgres.drop_database(name)


@pytest.fixture
async def outbox(outbox_database: str) -> str:
    """The DSN of a database with empty tables that nobody else uses meanwhile."""
    async with connect(outbox_database) as connection:
        await connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        await connection.execute(
            "SET lock_timeout = '5s'; TRUNCATE outbox_event, outbox_parked, outbox_audit; "
            "UPDATE outbox_lane SET epoch = 0, version = 0, seen = DEFAULT, last = 0, until = NULL, at = NULL, "
            "dispatched = 0, moved_at = NULL, owner = NULL, owned_at = NULL; "
            "UPDATE outbox_control SET store = NULL, system_identifier = NULL, timeline = NULL, database_oid = NULL, "
            "table_oid = NULL, paused_at = NULL, paused_by = NULL, paused_why = NULL"
        )
    return outbox_database


@pytest.fixture
async def db(outbox: str) -> AsyncIterator[Connection]:
    """A connection beside the stores, to write with and to look with."""
    async with connect(outbox) as connection:
        yield connection


@pytest.fixture
async def open_store(outbox: str) -> AsyncIterator[OpenStore]:
    opened: list[OutboxRows] = []

    async def open_one(**settings: Any) -> OutboxRows:
        store = OutboxRows(outbox, **settings)
        opened.append(store)
        return await store.open()

    yield open_one
    for store in opened:
        await store.close(Deadline(time.monotonic() + 2.0))


@pytest.fixture
async def open_log(outbox: str) -> AsyncIterator[OpenLog]:
    opened: list[OutboxLog] = []

    async def open_one(dsn: str | None = None, **settings: Any) -> OutboxLog:
        store = OutboxLog(outbox if dsn is None else dsn, **settings)
        opened.append(store)
        return await store.open()

    yield open_one
    for store in opened:
        await store.close(Deadline(time.monotonic() + 2.0))
