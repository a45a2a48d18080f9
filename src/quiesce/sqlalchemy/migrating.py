"""The tables of outbox and inbox, made by a migration of the service's own: by Alembic, or by anything with a
SQLAlchemy connection.
"""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, text
from sqlalchemy.engine.mock import MockConnection
from sqlalchemy.exc import DBAPIError

from quiesce.errors import QuiesceError, SettingsError, Unavailable
from quiesce.inbox.schema_steps import INBOX
from quiesce.migrations import LOCK, Migration, Tables
from quiesce.outbox.schema_steps import OUTBOX
from quiesce.sqlalchemy.enqueue import commits_by_itself

OUTBOX_TABLES = frozenset(OUTBOX.names)
"""For Alembic's `include_name`: autogenerate would propose to drop them, as no model of the service's names them."""

INBOX_TABLES = frozenset(INBOX.names)
"""The same for the inbox."""

_LOCK_TIMEOUT = "SELECT set_config('lock_timeout', :value, true)"
_WITHOUT_PARAMETERS = {"no_parameters": True}


def apply_outbox_schema(
    connection: Connection | MockConnection, *, to: int | None = None, lock_timeout: float = 30.0
) -> int:
    """Brings the outbox's tables to version `to`, by default that of this package. Returns the version they then have.

    Call it in `upgrade()` with `op.get_bind()`. A revision that says `to=` always does the same, whatever package is
    installed later. It does nothing where the tables are that far, or further. The tables are made in the first
    schema of the `search_path`, in the transaction that is open; another process that does the same is waited for, at
    most `lock_timeout` seconds. In Alembic's offline mode, where nobody can look what is there, the SQL of all steps up
    to `to` goes into the script; it may be run twice.

    Raises:
        SettingsError: there is no such version, the user may not create tables here, or the connection is in
            AUTOCOMMIT, so that the steps would not be one transaction.
        Unavailable: another process, or a statement on the tables, held a lock for longer.
    """
    return _apply(connection, OUTBOX, to, lock_timeout)


def apply_inbox_schema(
    connection: Connection | MockConnection, *, to: int | None = None, lock_timeout: float = 30.0
) -> int:
    """The same for the inbox's tables, which have steps and versions of their own. See `apply_outbox_schema`."""
    return _apply(connection, INBOX, to, lock_timeout)


def drop_outbox_schema(
    connection: Connection | MockConnection, *, discard_events: bool = False, lock_timeout: float = 30.0
) -> None:
    """Drops the outbox's tables, for `downgrade()`. Refuses while they hold an event, published or not.

    `discard_events`: drops them with whatever is in them. There is no way down from a version to an earlier one, and
    none is needed: later versions only add, and the package of an earlier one works on their tables.

    Raises:
        SettingsError: there are events, or the user may not drop the tables; or it would be written into a script,
            where nobody can look whether there are events, without `discard_events`.
        Unavailable: another process, or a statement on the tables, held a lock for longer than `lock_timeout` seconds.
    """
    if isinstance(connection, MockConnection):
        if not discard_events:
            raise SettingsError(
                "drop_outbox_schema: a script cannot look whether events would be lost. Takes a connection, or "
                "discard_events=True"
            )
        _write_script(";\n".join(OUTBOX.drop) + ";")
        return
    with _alone(connection, lock_timeout):
        for table in () if discard_events else ("outbox_event", "outbox_parked"):
            if _holds_rows(connection, table):
                raise SettingsError(
                    f"drop_outbox_schema: {table} is not empty, and its events would be lost. Let the relay publish "
                    "them and prune, or pass discard_events=True"
                )
        _run(connection, *OUTBOX.drop)


def drop_inbox_schema(
    connection: Connection | MockConnection, *, discard_marks: bool = False, lock_timeout: float = 30.0
) -> None:
    """Drops the inbox's tables, for `downgrade()`. Refuses while they hold a mark or a key.

    `discard_marks`: drops them with whatever is in them; what comes again afterwards is handled, or charged, twice.

    Raises:
        SettingsError, Unavailable: as `drop_outbox_schema`.
    """
    if isinstance(connection, MockConnection):
        if not discard_marks:
            raise SettingsError(
                "drop_inbox_schema: a script cannot look whether marks would be lost. Takes a connection, or "
                "discard_marks=True"
            )
        _write_script(";\n".join(INBOX.drop) + ";")
        return
    with _alone(connection, lock_timeout):
        for table in () if discard_marks else ("inbox_entry", "idempotency_key"):
            if _holds_rows(connection, table):
                raise SettingsError(
                    f"drop_inbox_schema: {table} is not empty; without it what comes again would be done twice. Prune "
                    "it when nothing can come again, or pass discard_marks=True"
                )
        _run(connection, *INBOX.drop)


def _apply(connection: Connection | MockConnection, tables: Tables, to: int | None, lock_timeout: float) -> int:
    steps = _steps(tables, to)
    if isinstance(connection, MockConnection):
        _write_script("\n".join(step.sql for step in steps))
        return steps[-1].version
    with _alone(connection, lock_timeout):
        applied = _applied(connection, tables)
        for step in steps:
            if step.version > applied:
                _run(connection, *step.statements())
    return max(applied, steps[-1].version)


def _steps(tables: Tables, to: int | None) -> list[Migration]:
    wanted = tables.latest_version() if to is None else to
    steps = [step for step in tables.migrations() if step.version <= wanted]
    if not steps or steps[-1].version != wanted:
        raise SettingsError(f"to: got {to}, takes a version from 1 to {tables.latest_version()}")
    return steps


def _holds_rows(connection: Connection, table: str) -> bool:
    if not _ask(connection, f"SELECT to_regclass('{table}') IS NOT NULL"):
        return False
    # Nobody writes between the look and the end of it all.
    _run(connection, f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
    return bool(_ask(connection, f"SELECT EXISTS (SELECT FROM {table})"))  # noqa: S608 - a name of our own


def _write_script(sql: str) -> None:
    """Into the script that Alembic writes in offline mode."""
    op: Any = importlib.import_module("alembic.op")
    # Not by `op.execute`: there `:` begins the name of a parameter, and some drivers' `%` is written twice.
    op.get_context().impl.static_output(sql)


@contextmanager
def _alone(connection: Connection, lock_timeout: float) -> Iterator[None]:
    """Nobody else applies or drops meanwhile. The transaction's own `lock_timeout` is put back afterwards."""
    given: object = connection
    if not isinstance(given, Connection):
        raise SettingsError(
            f"connection: got {type(given).__name__}, takes SQLAlchemy's Connection. From an AsyncConnection: "
            "`await connection.run_sync(apply_outbox_schema)`"
        )
    if commits_by_itself(connection):
        raise SettingsError(
            "connection: got one in AUTOCOMMIT, takes one with a transaction: the steps are made whole or not at all. "
            "In Alembic, call this outside of `autocommit_block()`"
        )
    try:
        before = _ask(connection, "SELECT current_setting('lock_timeout')")
        connection.execute(text(_LOCK_TIMEOUT), {"value": str(max(1, round(lock_timeout * 1000)))})
        _run(connection, f"SELECT pg_advisory_xact_lock({LOCK})")
        yield
        connection.execute(text(_LOCK_TIMEOUT), {"value": before})
    except DBAPIError as error:
        meaning = _meaning(error, lock_timeout)
        if meaning is None:
            raise
        raise meaning from error


def _applied(connection: Connection, tables: Tables) -> int:
    if _ask(connection, f"SELECT to_regclass('{tables.versions}') IS NULL"):
        return 0
    return int(_ask(connection, f"SELECT coalesce(max(version), 0) FROM {tables.versions}"))  # noqa: S608 - ours


def _ask(connection: Connection, sql: str) -> Any:
    return connection.exec_driver_sql(sql, execution_options=_WITHOUT_PARAMETERS).scalar_one()


def _run(connection: Connection, *statements: str) -> None:
    """As they stand: neither SQLAlchemy nor the driver looks for placeholders in them."""
    for statement in statements:
        connection.exec_driver_sql(statement, execution_options=_WITHOUT_PARAMETERS)


def _meaning(error: DBAPIError, lock_timeout: float) -> QuiesceError | None:
    match getattr(error.orig, "sqlstate", None) or getattr(error.orig, "pgcode", None):
        case "55P03":
            return Unavailable(f"the tables were locked by somebody else for {lock_timeout:g} s")
        case "42501":
            return SettingsError(
                f"database user: may not create or drop the tables ({error.orig}). Takes a user who owns the schema"
            )
    return None
