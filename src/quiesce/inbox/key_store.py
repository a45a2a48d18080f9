"""The store of idempotency keys, whatever the driver: how a key is claimed, and what is found in its place."""

import uuid
from typing import Literal

from quiesce.errors import SettingsError, TransactionConflict
from quiesce.inbox.kept_response import KeptResponse
from quiesce.inbox.key_claims import HeldClaim, LeasedClaim, NoKeyClaim, kept
from quiesce.inbox.key_ports import KeyClaim, NoClaim
from quiesce.inbox.key_statements import LOOK, TAKE, TAKE_OVER
from quiesce.inbox.key_transaction import Isolation, MakeTransaction, RequestTransaction
from quiesce.inbox.keyed_request import KeyedRequest

Hold = Literal["transaction", "lease"]

KEEP = 86_400.0
LEASE = 30.0


class KeyTable:
    """The table `idempotency_key` behind the port `KeyStore`.

    Args:
        make: makes a transaction of the driver.
        hold: how an attempt holds its key until it is answered. `transaction`: in the transaction that the handler
            writes in, by `Idempotency.transaction`. A connection is held from before the handler begins, and a crash
            frees the key at once. `lease`: by a committed row, for handlers that keep their connection to
            themselves, or have none. A crash frees the key after `lease` seconds, and nobody knows how far that
            attempt came.
        keep: seconds a key is known; after it the same key is a new one.
        lease: seconds after which an attempt that has ended without a word is given up. Renewed while it lives.
        isolation: of the handler's transaction; the database's own where it is None.

    Raises:
        SettingsError: one of them is wrong.
    """

    def __init__(
        self, make: MakeTransaction, *, hold: Hold, keep: float, lease: float, isolation: Isolation | None
    ) -> None:
        if hold not in ("transaction", "lease"):
            raise SettingsError(f"IdempotencyKeys: got hold={hold!r}, takes 'transaction' or 'lease'")
        if keep <= 0 or lease <= 0:
            raise SettingsError(f"IdempotencyKeys: got keep={keep:g} and lease={lease:g}, takes seconds, more than 0")
        self._make = make
        self._hold = hold
        self._keep = keep
        self._lease = lease
        self._isolation = isolation

    async def claim(self, request: KeyedRequest | None, within: float) -> KeyClaim | KeptResponse | NoClaim:
        """See the port `KeyStore`."""
        if request is None:
            return NoKeyClaim(RequestTransaction(self._make(), self._isolation), within)
        owner = (request.scope, request.key, str(uuid.uuid4()))
        if self._hold == "transaction":
            work = RequestTransaction(self._make(), self._isolation)
            found = await self._begin(work, request, owner[2], None, within)
            return HeldClaim(owner, found, work) if isinstance(found, int) else found
        # Whatever the default of the database: a claim has to see what was committed a moment ago.
        work = RequestTransaction(self._make(), "read_committed")
        found = await self._begin(work, request, owner[2], self._lease, within)
        if not isinstance(found, int):
            return found
        await work.commit()
        handlers = RequestTransaction(self._make(), self._isolation)
        return LeasedClaim(owner, found, self._make, handlers, lease=self._lease, within=within)

    async def _begin(
        self, work: RequestTransaction, request: KeyedRequest, owner: str, lease: float | None, within: float
    ) -> int | KeptResponse | NoClaim:
        """The number of the attempt, where the key is ours now, in a transaction that is left open."""
        await work.begin(within)
        found: int | KeptResponse | NoClaim = NoClaim.OUTSTANDING
        try:
            found = await self._take(work, request, owner, lease)
        except TransactionConflict:
            # Our snapshot is older than what another attempt has committed. The next look will show it.
            pass
        finally:
            if not isinstance(found, int):
                await work.roll_back()
        return found

    async def _take(
        self, work: RequestTransaction, request: KeyedRequest, owner: str, lease: float | None
    ) -> int | KeptResponse | NoClaim:
        names = (request.scope, request.key, request.fingerprint)
        first = await work.row(TAKE, *names, owner, lease, self._keep)
        assert first is not None
        if first["made"]:
            return 1
        row = await work.row(LOOK, *names) if first["ours"] else None
        if row is None:
            # Also where our snapshot is older than a row that was made meanwhile.
            return NoClaim.OUTSTANDING
        if not row["same"] and (row["leased"] or not row["expired"]):
            return NoClaim.OTHER_REQUEST
        if row["leased"]:
            return NoClaim.OUTSTANDING
        if row["state"] != "claimed" and not row["expired"]:
            return kept(row)
        taken = await work.row(TAKE_OVER, *names, owner, lease, self._keep)
        return NoClaim.OUTSTANDING if taken is None else int(taken["attempt"])
