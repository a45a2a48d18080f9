"""A publisher and its broker in memory, with faults written down beforehand. It passes the contract suite."""

import asyncio
import zlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from math import inf
from typing import Self
from uuid import UUID

from quiesce.errors import IntakeClosed
from quiesce.inbox.record import Record
from quiesce.lifecycle.deadline import Deadline
from quiesce.lifecycle.phases import Part
from quiesce.lifecycle.ports import Closed
from quiesce.outbox.event import ClaimedEvent
from quiesce.outbox.outcome import DISPATCHED, Dead, Outcome, Retry


class Fault(Enum):
    """What can happen to one event beside an outcome. Either breaks the producer: it has to be discarded."""

    ANSWER_LOST = "answer lost"
    """It arrives, and nobody hears of it."""
    NEVER_ARRIVES = "never arrives"


Script = Callable[[ClaimedEvent], Outcome | Fault | None]
"""Asked when an event reaches the broker; None lets it pass. An outcome other than Dispatched keeps it out, and with it
all that is behind: until the producer is discarded nothing more is sent, so that nothing goes before a retry."""


class MemoryBroker:
    """Topics in memory. While it is silent nothing is answered; `taken` is how many messages the network still
    carries to it then: they arrive when their producer is discarded, without an answer."""

    def __init__(self, *, max_message_bytes: int = 1_000_000, taken: int = 0) -> None:
        self.max_message_bytes = max_message_bytes
        self.taken = taken
        self.silent = False
        self._topics: dict[str, list[list[Record]]] = {}
        self._publishers: list[MemoryPublisher] = []

    def create_topic(self, name: str, partitions: int = 3) -> None:
        self._topics[name] = [[] for _ in range(partitions)]

    def has(self, topic: str) -> bool:
        return topic in self._topics

    def records(self, topic: str) -> list[Record]:
        """Everything on the topic, each partition in its order."""
        return [record for partition in self._topics[topic] for record in partition]

    def append(self, event: ClaimedEvent) -> None:
        partitions = self._topics[event.topic]
        key = event.aggregate_id.encode()
        number = zlib.crc32(key) % len(partitions)
        headers = {"id": str(event.id), "type": event.type, **event.headers}
        carried = tuple((name, value.encode()) for name, value in headers.items())
        log = partitions[number]
        log.append(Record(event.topic, number, len(log), key, event.payload, carried))

    def silence(self) -> None:
        self.silent = True

    def speak(self) -> None:
        self.silent = False
        for publisher in self._publishers:
            publisher.look()

    def serves(self, publisher: "MemoryPublisher") -> None:
        self._publishers.append(publisher)


class _Call:
    def __init__(self, events: Sequence[ClaimedEvent]) -> None:
        self.missing = len(events)
        self.outcomes: dict[UUID, Outcome] = {}
        self.over = asyncio.get_running_loop().create_future()

    def answer(self, event: ClaimedEvent, outcome: Outcome) -> None:
        self.outcomes[event.id] = outcome
        self.missing -= 1
        if not self.missing:
            self.finish()

    def finish(self) -> None:
        if not self.over.done():
            self.over.set_result(None)


class MemoryPublisher:
    """A `Publisher` on a `MemoryBroker`. One message is answered in a turn of the loop, so that everything
    else can come in between. It starts no task and needs no time, so it works on a virtual clock too."""

    def __init__(self, broker: MemoryBroker, script: Script | None = None, *, name: str = "memory-producer") -> None:
        self.name = name
        self.part = Part.PRODUCERS
        self.discards = 0
        self._broker = broker
        self._script = script
        self._queue: deque[tuple[_Call, ClaimedEvent]] = deque()
        self._calls: set[_Call] = set()
        self._open = False
        self._broken = False
        self._refused = False
        self._looking = False

    async def open(self) -> Self:
        self._open = True
        self._broker.serves(self)
        return self

    async def publish(self, events: Sequence[ClaimedEvent]) -> Mapping[UUID, Outcome]:
        """Raises IntakeClosed when it is not open."""
        if not self._open:
            raise IntakeClosed(f"{self.name} is not open: nothing can be published")
        if self._broken or not events:
            return {}
        call = _Call(events)
        self._calls.add(call)
        self._queue.extend((call, event) for event in events)
        self.look()
        try:
            await call.over
        finally:
            self._calls.discard(call)
        return call.outcomes

    def look(self) -> None:
        """Goes on with the first message of the queue, if the broker listens."""
        if self._queue and not self._looking and not self._broker.silent:
            self._looking = True
            asyncio.get_running_loop().call_soon(self._answer)

    def _answer(self) -> None:
        self._looking = False
        if not self._queue or self._broker.silent or self._broken:
            return
        call, event = self._queue.popleft()
        answer = self._broker_says(event)
        if isinstance(answer, Fault):
            # The event stays unanswered, and with it all behind it, until the producer is discarded.
            self._broken = True
            self._queue.appendleft((call, event))
            self._finish_calls()
            return
        call.answer(event, answer)
        if self._refused:
            self._refused = False
            self._broken = True
            self._finish_calls()
            return
        self.look()

    def _broker_says(self, event: ClaimedEvent) -> Outcome | Fault:
        told = self._script(event) if self._script else None
        if isinstance(told, Retry | Dead):
            self._refused = True
            return told
        if told is Fault.NEVER_ARRIVES:
            return told
        if not self._broker.has(event.topic):
            return Retry(f"UNKNOWN_TOPIC_OR_PART: {event.topic}")
        if len(event.payload or b"") + len(event.aggregate_id) > self._broker.max_message_bytes:
            return Dead("MSG_SIZE_TOO_LARGE")
        self._broker.append(event)
        return told or DISPATCHED

    def _finish_calls(self) -> None:
        for call in tuple(self._calls):
            call.finish()

    async def discard(self, deadline: Deadline) -> int:
        self.discards += 1
        return self._give_up()

    def _give_up(self) -> int:
        given_up = len(self._queue)
        for _, event in list(self._queue)[: self._broker.taken if self._broker.silent else 0]:
            if self._broker.has(event.topic):
                self._broker.append(event)
        self._queue.clear()
        self._broken = False
        self._finish_calls()
        return given_up

    async def reachable(self, deadline: Deadline) -> bool:
        now = asyncio.get_running_loop().time()
        if not self._open or deadline.passed(now):
            return False
        if self._broker.silent:
            await asyncio.sleep(deadline.remaining(now))
        return not self._broker.silent

    async def close(self, deadline: Deadline) -> Closed:
        if not self._open:
            return Closed()
        loop = asyncio.get_running_loop()
        overs = {call.over for call in self._calls}
        left = deadline.remaining(loop.time())
        if overs and not self._broken:
            await asyncio.wait(overs, timeout=None if left == inf else left)
        self._open = False
        undelivered = self._give_up()
        return Closed(forced=bool(undelivered), undelivered=undelivered)
