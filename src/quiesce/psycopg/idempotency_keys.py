"""Idempotency keys in PostgreSQL: the store behind `quiesce.asgi.Idempotency`, through psycopg."""

from functools import partial
from typing import Any

from psycopg_pool import AsyncConnectionPool

from quiesce.inbox.kept_response import KeptResponse
from quiesce.inbox.key_ports import KeyClaim, NoClaim
from quiesce.inbox.key_store import KEEP, LEASE, Hold, KeyTable
from quiesce.inbox.key_transaction import Isolation
from quiesce.inbox.keyed_request import KeyedRequest
from quiesce.psycopg.key_transaction import PoolTransaction


class IdempotencyKeys:
    """Keeps keys by the application's `AsyncConnectionPool`; handlers get its connections. The arguments are those of
    `quiesce.inbox.key_store.KeyTable`.

    Raises:
        SettingsError: one of them is wrong.
    """

    def __init__(
        self,
        pool: AsyncConnectionPool[Any],
        *,
        hold: Hold = "lease",
        keep: float = KEEP,
        lease: float = LEASE,
        isolation: Isolation | None = None,
    ) -> None:
        made = partial(PoolTransaction, pool)
        self._table = KeyTable(made, hold=hold, keep=keep, lease=lease, isolation=isolation)

    async def claim(self, request: KeyedRequest | None, within: float) -> KeyClaim | KeptResponse | NoClaim:
        """See the port `KeyStore`."""
        return await self._table.claim(request, within)
