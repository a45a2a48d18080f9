"""Where idempotency keys are kept, and one attempt at the request of a key."""

from contextlib import AbstractAsyncContextManager
from enum import Enum
from typing import Any, Protocol

from quiesce.inbox.kept_response import KeptResponse
from quiesce.inbox.keyed_request import KeyedRequest


class NoClaim(Enum):
    """Why a key could not be claimed."""

    OUTSTANDING = "another attempt is carrying it out"
    OTHER_REQUEST = "the key belongs to a request with another fingerprint"


class KeyClaim(Protocol):
    """One attempt at a request. Exactly one of `settle` and `free` ends it; both are safe to call again."""

    @property
    def attempt(self) -> int:
        """1; more where earlier attempts ended without a word, so that nobody knows how far they came."""
        ...

    @property
    def open(self) -> bool:
        """Whether the handler is inside a block of `transaction` now."""
        ...

    @property
    def effect(self) -> bool:
        """Whether a block of `transaction` has ended well."""
        ...

    @property
    def renew_every(self) -> float | None:
        """Seconds between two calls of `renew`; None where nothing is to be renewed."""
        ...

    @property
    def settles_for(self) -> float:
        """Seconds for which `settle` may be called again after it has raised `Unavailable`: what the handler did is no
        part of it, and stays. 0 where all of it is rolled back."""
        ...

    async def renew(self) -> bool:
        """Keeps others away for some more time. False: another attempt has the key already.

        Raises:
            Unavailable: the database did not answer; whether it is kept is unknown.
        """
        ...

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        """A connection for the handler's writes. They are committed by `settle`, together with the response.

        A block that raises takes back what was written in it, and that alone.

        Raises:
            KeyLost: another attempt has the key now.
            Unavailable: there is no connection.
        """
        ...

    async def settle(self, response: KeptResponse | None) -> None:
        """Keeps the response and commits it with what was written in `transaction`. After it nobody runs the handler
        for this key again. If it raises, nothing was committed; and the key is free, as far as the database can be
        told, unless `settles_for` is more than 0. None where the request had no key.

        Raises:
            KeyLost: another attempt has the key.
            Exception: what the database says to the commit, such as that a deferred constraint is violated.
        """
        ...

    async def free(self) -> None:
        """Takes back what was written and leaves the key as it was before. What cannot be said to a database that is
        away, it finds out by the end of the connection or of the lease.

        Raises:
            Exception: the database refuses it, such as for a right that is missing.
        """
        ...


class KeyStore(Protocol):
    """Where idempotency keys are kept."""

    async def claim(self, request: KeyedRequest | None, within: float) -> KeyClaim | KeptResponse | NoClaim:
        """Claims the key, or says what stands there. It never waits for another attempt, so that whoever waits holds no
        connection meanwhile. Without a request: a claim on nothing, for a handler that was sent no key.

        Args:
            within: seconds to wait for a connection.

        Raises:
            Unavailable: the database cannot be reached, or the pool had no connection. Nothing is claimed.
            SchemaMissing: the table is not there.
        """
        ...
