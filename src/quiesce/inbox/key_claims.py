"""The three ways in which an attempt holds a key: in its transaction, by a lease, or not at all."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from quiesce.errors import KeyLost, Unavailable
from quiesce.inbox.kept_response import KeptResponse
from quiesce.inbox.key_statements import FENCE, FREE, RENEW, SETTLE
from quiesce.inbox.key_transaction import MakeTransaction, RequestTransaction

Owner = tuple[str, str, str]
"""Scope, key and the owner's mark."""


class HeldClaim:
    """The claim is an open transaction: its end is the claim's, whatever ends it."""

    renew_every = None
    settles_for = 0.0

    def __init__(self, owner: Owner, attempt: int, work: RequestTransaction) -> None:
        self._owner = owner
        self._work = work
        self.attempt = attempt

    @property
    def open(self) -> bool:
        return self._work.open

    @property
    def effect(self) -> bool:
        return self._work.effect

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        return self._work.block()

    async def renew(self) -> bool:
        return True

    async def settle(self, response: KeptResponse | None) -> None:
        if self._work.over:
            return
        assert response is not None
        await _keep_and_commit(self._work, self._owner, response)

    async def free(self) -> None:
        if not self._work.over:
            await self._work.roll_back()


class LeasedClaim:
    """The claim is a row with a lease that is renewed. The handler may have a transaction, and need not.

    Args:
        make: for what is done beside the handler's transaction.
        work: the handler's.
        lease: seconds after which others may take the key if nothing is heard of this attempt.
        within: seconds to wait for a connection.
    """

    def __init__(
        self,
        owner: Owner,
        attempt: int,
        make: MakeTransaction,
        work: RequestTransaction,
        *,
        lease: float,
        within: float,
    ) -> None:
        self._owner = owner
        self._make = make
        self._work = work
        self._lease = lease
        self._within = within
        self._over = False
        self._answered = False
        """The handler has answered, and what it did stays: were its key free at once, a retry would do it again."""
        self.attempt = attempt
        self.renew_every = lease / 3

    @property
    def settles_for(self) -> float:
        return 0.0 if self._work.begun else self._lease

    @property
    def open(self) -> bool:
        return self._work.open

    @property
    def effect(self) -> bool:
        return self._work.effect

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        if self._over:
            raise RuntimeError("this request is over, and so is its transaction")
        if not self._work.begun:
            await self._work.begin(self._within)
            # The row is locked from here on, so nobody can take it and nothing is to be renewed.
            if await self._work.row(FENCE, *self._owner) is None:
                await self._work.roll_back()
        if self._work.over:
            raise KeyLost(f"another attempt took the idempotency key after {self._lease:g} s without a word")
        async with self._work.block() as connection:
            yield connection

    async def renew(self) -> bool:
        return self._over or self._work.begun or await self._alone(RENEW, self._lease)

    async def settle(self, response: KeptResponse | None) -> None:
        if self._over:
            return
        assert response is not None
        if self._work.over or not self._work.begun:
            self._answered = True
            beside = RequestTransaction(self._make(), "read_committed")
            await beside.begin(self._within)
            await _keep_and_commit(beside, self._owner, response)
            self._over = True
            return
        self._over = True
        try:
            await _keep_and_commit(self._work, self._owner, response)
        except BaseException:
            await self._delete()
            raise

    async def free(self) -> None:
        if self._over:
            return
        self._over = True
        await self._work.roll_back()
        if not self._answered:
            await self._delete()

    async def _delete(self) -> None:
        try:
            await self._alone(FREE)
        except Unavailable:
            # Its lease runs out.
            return

    async def _alone(self, sql: str, *values: Any) -> bool:
        """One statement about the claim, in a transaction of its own. Whether it was still ours."""
        work = RequestTransaction(self._make(), "read_committed")
        await work.begin(self._within)
        try:
            found = await work.row(sql, *self._owner, *values)
        except BaseException:
            await work.roll_back()
            raise
        await work.commit()
        return found is not None


class NoKeyClaim:
    """For a request without a key: a transaction that is committed before the response leaves, and no more."""

    attempt = 1
    renew_every = None
    settles_for = 0.0

    def __init__(self, work: RequestTransaction, within: float) -> None:
        self._work = work
        self._within = within

    @property
    def open(self) -> bool:
        return self._work.open

    @property
    def effect(self) -> bool:
        return self._work.effect

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        if not self._work.begun and not self._work.over:
            await self._work.begin(self._within)
        async with self._work.block() as connection:
            yield connection

    async def renew(self) -> bool:
        return True

    async def settle(self, response: KeptResponse | None) -> None:
        if self._work.over:
            return
        self._work.over = True
        if self._work.begun:
            await self._work.commit()

    async def free(self) -> None:
        if not self._work.over:
            await self._work.roll_back()


async def _keep_and_commit(work: RequestTransaction, owner: Owner, response: KeptResponse) -> None:
    """Writes the response into the claim's row, and commits it with all that was written before."""
    headers = json.dumps([[name.decode("latin-1"), value.decode("latin-1")] for name, value in response.headers])
    why = response.not_kept if response.body is None else None
    try:
        mine = await work.row(SETTLE, *owner, response.status, headers, response.body, why)
        if mine is None:
            raise KeyLost("another attempt has the idempotency key: its answer counts, and nothing was written here")
    except BaseException:
        await work.roll_back()
        raise
    await work.commit()


def kept(row: Mapping[str, Any]) -> KeptResponse:
    """The response that stands in a row of `LOOK`."""
    headers = tuple((name.encode("latin-1"), value.encode("latin-1")) for name, value in json.loads(row["headers"]))
    body = row["body"]
    return KeptResponse(row["status"], headers, None if body is None else bytes(body), row["not_kept"] or "")
