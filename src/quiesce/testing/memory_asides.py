"""Dead letters and a retry topic in memory. They pass the contract suite of their ports."""

import asyncio
from typing import Self

from quiesce.errors import IntakeClosed, Unavailable
from quiesce.inbox.reason import Reason
from quiesce.inbox.record import Record
from quiesce.inbox.retry_headers import Headers, with_reason
from quiesce.lifecycle.deadline import Deadline
from quiesce.lifecycle.phases import Part
from quiesce.lifecycle.ports import Closed


class _Kept:
    """A topic of one partition. While it is `silent` it keeps nothing and answers nobody."""

    def __init__(self, topic: str, name: str) -> None:
        self.topic = topic
        self.name = name
        self.part = Part.PRODUCERS
        self.records: list[Record] = []
        self.silent = False
        self._open = False

    async def open(self) -> Self:
        self._open = True
        return self

    async def close(self, deadline: Deadline) -> Closed:
        self._open = False
        return Closed()

    async def keep(self, record: Record, headers: Headers, deadline: Deadline) -> None:
        if not self._open:
            raise IntakeClosed(f"{self.name} is not open")
        if self.silent:
            await asyncio.sleep(min(deadline.remaining(asyncio.get_running_loop().time()), 3600.0))
            raise Unavailable(f"{self.name}: no ack by the deadline")
        await asyncio.sleep(0)
        self.records.append(Record(self.topic, 0, len(self.records), record.key, record.value, headers))


class MemoryDeadLetters(_Kept):
    """A `SetsAside`. What was given up is in `records`, with the reason in the headers."""

    def __init__(self, topic: str = "events.dead", *, name: str = "memory-dead-letters") -> None:
        super().__init__(topic, name)

    async def set_aside(self, record: Record, reason: Reason, deadline: Deadline) -> None:
        await self.keep(record, with_reason(record, reason, self.topic), deadline)


class MemoryRetryTopic(_Kept):
    """A `Postpones`. What waits is in `records`; nobody brings it back."""

    def __init__(self, topic: str = "events.retry", *, name: str = "memory-retry-topic") -> None:
        super().__init__(topic, name)

    def topic_of(self, source: str, /) -> str:
        return self.topic

    async def postpone(self, record: Record, reason: Reason, not_before: float, deadline: Deadline) -> None:
        await self.keep(record, with_reason(record, reason, self.topic, until=not_before), deadline)
