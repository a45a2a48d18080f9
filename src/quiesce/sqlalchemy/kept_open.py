"""A transaction that only its owner commits, and sessions that join it: a handler's commit is refused on a connection,
and goes as far as a savepoint in a session."""

import re
from typing import Any

from sqlalchemy import Connection, Engine, event
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession

from quiesce.errors import SettingsError

_ENDING = re.compile(
    # What may stand before the first word of a statement, and a first word that ends a transaction.
    r"(?:\s|;|--[^\n]*\n|/\*.*?\*/)*(?:commit|end|abort|prepare\s+transaction"
    r"|rollback(?!\s+(?:(?:work|transaction)\s+)?to\b))\b",
    re.IGNORECASE | re.DOTALL,
)


class KeptOpen:
    """Guards the transaction of one connection from now on, until `let_go`. `why` is what whoever ends it is told.

    Refused are `commit` of the connection or of its transaction, and statements that begin with `COMMIT`, `ROLLBACK`
    and the like. A rollback is let through, since a session makes one of a failed flush, and remembered. What goes
    past SQLAlchemy, to the driver's own connection, is not seen.
    """

    def __init__(self, connection: AsyncConnection, why: str) -> None:
        self.ended = False
        """Whether it was rolled back, by the handler or because a commit was refused."""
        self._why = why
        self._ours = False
        guarded = connection.sync_connection
        assert guarded is not None
        event.listen(guarded, "commit", self._refuse)
        event.listen(guarded, "rollback", self._note)
        event.listen(guarded, "before_cursor_execute", self._read)

    def require_open(self) -> None:
        """Raises RuntimeError if it has ended, also where the handler has kept an error to itself."""
        if self.ended:
            raise RuntimeError(self._why)

    def let_go(self) -> None:
        """From here on the transaction may end."""
        self._ours = True

    def _read(self, connection: Connection, cursor: Any, statement: str, *_: object) -> None:
        if _ENDING.match(statement):
            self._refuse(connection)

    def _refuse(self, connection: Connection) -> None:
        if self._ours:
            return
        self.ended = True
        # SQLAlchemy takes the transaction for over from here on, and so might give it, open as it is, to its pool.
        connection.invalidate()
        raise RuntimeError(self._why)

    def _note(self, connection: Connection) -> None:
        # What is lost has been rolled back already, and its next statement says so.
        self.ended = self.ended or not (self._ours or connection.invalidated)


def engine_of(session: AsyncSession) -> AsyncEngine:
    """The engine that a session takes for statements of no class.

    Raises:
        SettingsError: it is bound to a connection.
    """
    bind = session.sync_session.get_bind()
    if not isinstance(bind, Engine):
        raise SettingsError("IdempotencyKeys: the sessions are bound to a connection, takes an engine")
    return AsyncEngine(bind)


def join(session: AsyncSession, connection: AsyncConnection) -> None:
    """From now on the session uses this connection wherever it would take one of its engine. With the join mode
    `create_savepoint` its transactions are savepoints then."""
    sync, joined = session.sync_session, connection.sync_connection
    assert joined is not None
    chosen = sync.get_bind

    def get_bind(*args: Any, **settings: Any) -> Engine | Connection:
        # Asked and not replaced: a class of its own may choose another engine for some of its statements.
        bind = chosen(*args, **settings)
        return joined if bind is joined.engine else bind

    vars(sync)["get_bind"] = get_bind
