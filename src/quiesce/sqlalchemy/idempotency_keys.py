"""Idempotency keys in PostgreSQL: the store behind `quiesce.asgi.Idempotency`, through SQLAlchemy."""

from functools import partial
from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker

from quiesce.inbox.kept_response import KeptResponse
from quiesce.inbox.key_ports import KeyClaim, NoClaim
from quiesce.inbox.key_store import KEEP, LEASE, Hold, KeyTable
from quiesce.inbox.key_transaction import Isolation
from quiesce.inbox.keyed_request import KeyedRequest
from quiesce.sqlalchemy.key_transaction import EngineTransaction


class IdempotencyKeys:
    """Keeps keys by an `AsyncEngine`, and handlers get its connections; or by an `async_sessionmaker`, and they get
    sessions. What a handler commits in its session is a savepoint, and is committed with its answer; a commit of a
    connection is refused. The other arguments are those of `quiesce.inbox.key_store.KeyTable`.

    Raises:
        SettingsError: one of them is wrong.
    """

    def __init__(
        self,
        db: "AsyncEngine | async_sessionmaker[Any]",
        *,
        hold: Hold = "lease",
        keep: float = KEEP,
        lease: float = LEASE,
        isolation: Isolation | None = None,
    ) -> None:
        made = partial(EngineTransaction, db)
        self._table = KeyTable(made, hold=hold, keep=keep, lease=lease, isolation=isolation)

    async def claim(self, request: KeyedRequest | None, within: float) -> KeyClaim | KeptResponse | NoClaim:
        """See the port `KeyStore`."""
        return await self._table.claim(request, within)
