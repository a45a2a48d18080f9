"""How many claims of a store may be open at once."""

import asyncio

from quiesce.errors import Unavailable


class ClaimSlots:
    def __init__(self, name: str, claims: int, within: float) -> None:
        """`within` seconds a claim waits for a slot."""
        self._name = name
        self._claims = claims
        self._within = within
        self._free = asyncio.Semaphore(claims)

    async def take(self) -> None:
        """Takes one, to be given back when the claim has ended.

        Raises:
            Unavailable: all of them stayed open.
        """
        if not self._free.locked():
            # Nearly always: no timer is made for it.
            await self._free.acquire()
            return
        try:
            async with asyncio.timeout(self._within):
                await self._free.acquire()
        except TimeoutError as error:
            raise Unavailable(f"{self._name}: all {self._claims} claims stayed open for {self._within} s") from error

    def give_back(self) -> None:
        self._free.release()
