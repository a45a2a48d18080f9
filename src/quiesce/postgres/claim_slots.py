"""How many claims of a store may be open at once."""

import asyncio

from quiesce.errors import Unavailable


class ClaimSlots:
    def __init__(self, name: str, claims: int, within: float) -> None:
        """`within` seconds a claim waits for a slot."""
        self._name = name
        self._claims = claims
        self._within = within
        self._free = claims
        self._freed = asyncio.Event()

    def take_at_once(self) -> bool:
        """Takes one, to be given back when the claim has ended. Whether there was any."""
        if not self._free:
            return False
        self._free -= 1
        return True

    async def take(self) -> None:
        """The same, and waits for one.

        Raises:
            Unavailable: all of them stayed open.
        """
        # Nearly always at once: no timer is made for it.
        if self.take_at_once():
            return
        try:
            async with asyncio.timeout(self._within):
                while not self.take_at_once():
                    self._freed.clear()
                    await self._freed.wait()
        except TimeoutError as error:
            raise Unavailable(f"{self._name}: all {self._claims} claims stayed open for {self._within} s") from error

    def give_back(self) -> None:
        self._free += 1
        self._freed.set()
