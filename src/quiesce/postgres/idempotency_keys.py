"""Idempotency keys in PostgreSQL: the store behind `quiesce.asgi.Idempotency`, through asyncpg."""

import asyncio
import time
from functools import partial

from quiesce.inbox.kept_response import KeptResponse
from quiesce.inbox.key_ports import KeyClaim, NoClaim
from quiesce.inbox.key_statements import PRUNE
from quiesce.inbox.key_store import KEEP, LEASE, Hold, KeyTable
from quiesce.inbox.key_transaction import Isolation
from quiesce.inbox.keyed_request import KeyedRequest
from quiesce.postgres.driver import AnyConnection, Pool
from quiesce.postgres.key_transaction import PoolTransaction

PIECE = 1_000
"""Keys deleted by one statement."""


class IdempotencyKeys:
    """Keeps keys by the application's pool of asyncpg; handlers get its connections. The arguments are those of
    `quiesce.inbox.key_store.KeyTable`.

    Raises:
        SettingsError: one of them is wrong.
    """

    def __init__(
        self,
        pool: Pool,
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


async def prune_keys(db: AnyConnection | Pool, *, piece: int = PIECE, bound: float = 10.0) -> int:
    """Deletes keys that have expired, in pieces, for `bound` seconds at most. Returns how many.

    Give it to a service: `s.every(60, prune_keys, db, on_drain="cancel")`. Every replica may.
    """
    until = time.monotonic() + bound
    deleted = 0
    while True:
        gone = int((await db.execute(PRUNE, piece)).rpartition(" ")[2])
        deleted += gone
        if gone < piece or time.monotonic() >= until:
            return deleted
        await asyncio.sleep(0)
