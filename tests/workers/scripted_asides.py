"""In memory: what takes records that are given up or put off, and what counts starts."""

import asyncio
from collections.abc import Sequence

from quiesce.errors import SetAsideRefused, Unavailable
from quiesce.inbox.reason import Reason
from quiesce.inbox.record import Record
from quiesce.lifecycle.deadline import Deadline
from quiesce.lifecycle.phases import Part
from quiesce.lifecycle.ports import Closed

RETRY_TOPIC = "products"
"""Where the scripted source's records stand. Those with the headers of `came_back` were first read elsewhere."""


def came_back(**more: int) -> tuple[tuple[str, bytes | None], ...]:
    """The headers of a record of the retry topic; `tries=2` stands for `quiesce-tries`, and so on."""
    said = {"topic": RETRY_TOPIC, "origin-topic": "orders", "origin-partition": 3, "origin-offset": 9}
    said |= {name.replace("_", "-"): value for name, value in more.items()}
    return tuple((f"quiesce-{name}", str(value).encode()) for name, value in said.items())


class Kept:
    """Keeps records, as a topic does. `away` until an instant; `refuses` some for good."""

    def __init__(self, away_until: float = 0.0, refuses: Sequence[int] = ()) -> None:
        self.name = "kept"
        self.part = Part.PRODUCERS
        self.records: list[tuple[int, Reason]] = []
        self.not_before: list[float] = []
        self._away_until = away_until
        self._refuses = refuses

    async def open(self) -> "Kept":
        return self

    async def close(self, deadline: Deadline) -> Closed:
        return Closed()

    async def set_aside(self, record: Record, reason: Reason, deadline: Deadline) -> None:
        now = asyncio.get_running_loop().time()
        await asyncio.sleep(0.01)
        if now < self._away_until:
            raise Unavailable("no such topic")
        if record.offset in self._refuses:
            raise SetAsideRefused(f"{record} is too large")
        self.records.append((record.offset, reason))

    def topic_of(self, source: str, /) -> str:
        return RETRY_TOPIC

    async def postpone(self, record: Record, reason: Reason, not_before: float, deadline: Deadline) -> None:
        await self.set_aside(record, reason, deadline)
        self.not_before.append(not_before)


class Starts:
    """Counts starts in memory: what outlives a process."""

    def __init__(self, before: dict[int, int] | None = None, away_until: float = 0.0) -> None:
        self.open = dict(before or {})
        self.log: list[tuple[str, list[int]]] = []
        self._away_until = away_until

    async def began(self, consumer: str, records: Sequence[Record], *, alone: bool = False) -> Sequence[int]:
        await asyncio.sleep(0.001)
        if asyncio.get_running_loop().time() < self._away_until:
            raise Unavailable("the database is away")
        offsets = [one.offset for one in records]
        earlier = [self.open.get(offset, 0) for offset in offsets]
        self.log.append(("alone" if alone else "began", offsets))
        if alone or not any(earlier):
            for offset in offsets:
                self.open[offset] = self.open.get(offset, 0) + 1
        return earlier

    async def ended(self, consumer: str, records: Sequence[Record]) -> None:
        for one in records:
            self.open.pop(one.offset, None)
