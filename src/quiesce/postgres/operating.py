"""What every operator's verb needs: a connection to tables that are there, short transactions, errors in one line."""

import getpass
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import asyncpg

from quiesce.errors import SettingsError, Unavailable
from quiesce.inbox.schema_steps import INBOX
from quiesce.migrations import Tables
from quiesce.outbox.schema_steps import OUTBOX
from quiesce.postgres import inbox_schema, schema
from quiesce.postgres.connections import (
    APPLICATION,
    CONNECTION_LOST,
    Connector,
    close_connection,
    open_connection,
)
from quiesce.postgres.driver import AnyConnection, Connection

TIMEOUT = 30.0
"""Seconds a statement of an operator may take."""


_CONNECT_TIMEOUT = 5.0
_LOCK_TIMEOUT = 5.0


class _Operator(Connector):
    """Keeps no prepared statements: behind a pooler the next transaction may be in another session. Within one, all
    that operators do goes through; so everything is done in transactions."""

    def __init__(self) -> None:
        super().__init__(APPLICATION)

    async def __call__(self, dsn: str | None = None, **options: Any) -> Connection:
        return await super().__call__(dsn, **{"statement_cache_size": 0, **options})


@asynccontextmanager
async def operating(dsn: str, *, require: bool = True, tables: Tables = OUTBOX) -> AsyncIterator[Connection]:
    """A connection for as long as the block runs, to tables of this package's version.

    Without `require` the tables may be old, or not there at all. `tables`: the outbox's or the inbox's.

    Raises:
        Unavailable: the server cannot be reached, or a statement took longer than `TIMEOUT` or waited for a lock.
        SettingsError: the DSN is wrong or leads to a standby, the user may not do this, or a value is beyond what
            PostgreSQL takes.
        SchemaMissing: the tables are not there. The message names the command.
    """
    connection = await open_connection(_Operator(), dsn, tables.part, _CONNECT_TIMEOUT)
    try:
        async with _errors_in_one_line(tables):
            if require:
                async with short_transaction(connection, readonly=True):
                    await (inbox_schema if tables is INBOX else schema).require(connection)
            yield connection
    finally:
        await close_connection(connection, _CONNECT_TIMEOUT)


@asynccontextmanager
async def _errors_in_one_line(tables: Tables) -> AsyncIterator[None]:
    try:
        yield
    except (asyncpg.UndefinedTableError, asyncpg.UndefinedColumnError) as error:
        raise tables.missing(str(error)) from error
    except asyncpg.InsufficientPrivilegeError as error:
        advice = (
            "Takes a user who may SELECT from the inbox's tables and DELETE from them"
            if tables is INBOX
            else "`quiesce outbox schema apply --grants operator=ROLE` prints what an operator needs"
        )
        raise SettingsError(f"database user: may not do this ({error}). {advice}") from error
    except asyncpg.DataError as error:
        # Such as bytes that are no text, or an instant or an age beyond what PostgreSQL has.
        told = ascii(str(error))[1:-1]
        raise SettingsError(f"a value that PostgreSQL does not take, and nothing was done: {told}") from error
    except asyncpg.ReadOnlySQLTransactionError as error:
        raise SettingsError(f"--dsn: leads to a server that takes no writes ({error}). Takes the primary") from error
    except asyncpg.QueryCanceledError as error:
        raise Unavailable(f"the database did not answer within {TIMEOUT:g} s: {error}") from error
    except asyncpg.LockNotAvailableError as error:
        raise Unavailable(
            f"somebody else held a lock for {_LOCK_TIMEOUT:g} s, and nothing was done: {error}"
        ) from error
    except asyncpg.TransactionRollbackError as error:
        raise Unavailable(f"others changed the same rows, and nothing was done; try again: {error}") from error
    except CONNECTION_LOST as error:
        raise Unavailable(f"the database went away: {str(error) or type(error).__name__}") from error


@asynccontextmanager
async def short_transaction(
    connection: AnyConnection,
    *,
    readonly: bool = False,
    seconds: float = TIMEOUT,
    isolation: Literal["read_committed", "repeatable_read"] = "read_committed",
) -> AsyncIterator[None]:
    """A transaction whose statements, and their waits for locks, are bounded by the server.

    The limits are SET LOCAL, so that they hold behind a pooler and stay with nobody else.
    """
    async with connection.transaction(isolation=isolation, readonly=readonly):
        statement, lock = (max(1, round(limit * 1000)) for limit in (seconds, min(seconds, _LOCK_TIMEOUT)))
        await connection.execute(f"SET LOCAL statement_timeout = {statement}; SET LOCAL lock_timeout = {lock}")
        yield


def operator() -> str:
    """Whom the operating system takes the operator for; for the audit, where nobody says more."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"
