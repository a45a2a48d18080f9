"""Claiming a key, and waiting for whoever has it. One of a key's requests asks the store, the others wait for it."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field

from quiesce.inbox.kept_response import KeptResponse
from quiesce.inbox.key_ports import KeyClaim, KeyStore, NoClaim
from quiesce.inbox.keyed_request import KeyedRequest

_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 0.25


@dataclass(eq=False, slots=True)
class Turn:
    """The request of this process that asks the store about its key, or carries it out."""

    request: KeyedRequest
    claimed: bool = False
    answer: KeptResponse | None = None
    """What is committed for this key: those who waited need not ask the store."""
    over: asyncio.Event = field(default_factory=asyncio.Event)


class WaitingKeys:
    """Whoever waits holds no connection.

    Args:
        wait: seconds for which a request waits for the answer of another one with its key.
    """

    def __init__(self, store: KeyStore, wait: float) -> None:
        self._store = store
        self._wait = wait
        self._turns: dict[tuple[str, str], Turn] = {}

    async def claim(self, request: KeyedRequest) -> KeyClaim | KeptResponse | NoClaim:
        """What became of the key within the time. A claim has to be given to `done` when it is over.

        Raises: as `KeyStore.claim`.
        """
        place = (request.scope, request.key)
        loop = asyncio.get_running_loop()
        until = loop.time() + self._wait
        while (other := self._turns.get(place)) is not None:
            differs = other.request.fingerprint != request.fingerprint
            if other.claimed and differs:
                return NoClaim.OTHER_REQUEST
            try:
                async with asyncio.timeout_at(until):
                    await other.over.wait()
            except TimeoutError:
                return NoClaim.OUTSTANDING
            if other.answer is not None:
                return NoClaim.OTHER_REQUEST if differs else other.answer
        turn = self._turns[place] = Turn(request)
        try:
            found = await self._ask(request, until)
        except BaseException:
            self.done(request)
            raise
        turn.claimed = not isinstance(found, (KeptResponse, NoClaim))
        if not turn.claimed:
            self.done(request, found if isinstance(found, KeptResponse) else None)
        return found

    def done(self, request: KeyedRequest, answer: KeptResponse | None = None) -> None:
        """It is decided: `answer` is what was committed; None lets the next one ask. Safe to call again."""
        turn = self._turns.get((request.scope, request.key))
        # Another request with this key may have its turn by now.
        if turn is not None and turn.request is request:
            del self._turns[request.scope, request.key]
            turn.answer = answer
            turn.over.set()

    async def _ask(self, request: KeyedRequest, until: float) -> KeyClaim | KeptResponse | NoClaim:
        loop = asyncio.get_running_loop()
        pause = _FIRST_PAUSE
        while True:
            # At least a second for a connection: who has waited long must still learn what became of it.
            found = await self._store.claim(request, max(1.0, until - loop.time()))
            left = until - loop.time()
            if found is not NoClaim.OUTSTANDING or left <= 0:
                return found
            with suppress(TimeoutError):
                await asyncio.sleep(min(pause, left))
            pause = min(pause * 1.5, _LONGEST_PAUSE)
