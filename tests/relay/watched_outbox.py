"""An outbox in memory that waits by itself for something to claim, and holds lanes that it can let go of."""

import asyncio
from dataclasses import dataclass

from scripted_outbox import MemoryStore


@dataclass
class WatchedStore(MemoryStore):
    """A watch looks as often as it is asked to. `faults["watch"]` and `away` are for it as well."""

    watches: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.watched: list[tuple[float, float]] = []
        """When each watch began, and how often it looked."""
        self.watching = 0
        self.let_go_at: list[float] = []
        self._ended = asyncio.Event()

    async def watch(self, seconds: float, every: float, pause: float = 0.0) -> bool:
        assert not self.watching, "two watches at once"
        self._ended.clear()
        self.watching += 1
        self.watched.append((self.now(), every))
        try:
            until = self.now() + seconds
            while self.now() < until and not self._ended.is_set():
                try:
                    async with asyncio.timeout(pause):
                        await self._ended.wait()
                    return True
                except TimeoutError:
                    pause = every
                await self.answer("watch")
                if self._free(1):
                    return True
            return self._ended.is_set()
        finally:
            self.watching -= 1

    def end_watch(self) -> None:
        self._ended.set()

    async def let_go(self) -> None:
        assert not self.claimed(), "let go of with something in hand"
        self.let_go_at.append(self.now())
