"""An outbox and a broker in memory that let a claim grow while it is under way."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from scripted_outbox import MemoryBroker, MemoryClaim
from watched_outbox import WatchedStore

from quiesce.outbox.event import ClaimedEvent
from quiesce.outbox.outcome import Outcome, Retry


class GrowingMemoryClaim(MemoryClaim):
    def absorb(self, later: MemoryClaim) -> None:
        assert not self._over
        later._end()
        self._rows += later._rows
        self.events += later.events


@dataclass
class GrowingStore(WatchedStore):
    """A watch that has found something has brought all there is along. `faults["at once"]` are for claiming that."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._brought = False

    async def watch(self, seconds: float, every: float, pause: float = 0.0) -> bool:
        self._brought = False
        found = await super().watch(seconds, every, pause)
        self._brought = bool(found and self._free(1))
        return found

    def claim_at_once(self, limit: int) -> GrowingMemoryClaim | None:
        self.begins()
        brought, self._brought = self._brought, False
        if not brought or not self._free(limit):
            return None
        if self.faults.get("at once"):
            raise self.faults["at once"].pop(0)
        return GrowingMemoryClaim(self, self._hand_out(limit))


@dataclass
class AddingBroker(MemoryBroker):
    """A call takes more, until its last answer, while nothing that was handed over will be refused. What comes behind a
    refused event of its key, in whatever call, is refused as well: as the port has it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.added: list[ClaimedEvent] = []

    async def publish(self, events: Sequence[ClaimedEvent]) -> Mapping[UUID, Outcome]:
        refused = {event.aggregate_id for _, event in self._queue if self.refuse.get(event.id)}
        for event in events:
            if self.refuse.get(event.id):
                refused.add(event.aggregate_id)
            elif event.aggregate_id in refused:
                self.refuse[event.id] = [Retry("behind another", 0.02, counts=False)]
        return await super().publish(events)

    def takes(self, events: Sequence[ClaimedEvent], more: Sequence[ClaimedEvent]) -> bool:
        waiting = [call for call, _ in self._queue]
        doubtful = any(self.refuse.get(event.id) for event in (*(event for _, event in self._queue), *more))
        return not doubtful and any(call.events is events for call in waiting)

    def add(self, events: Sequence[ClaimedEvent], known: int) -> None:
        call = next(call for call, _ in self._queue if call.events is events)
        more = events[known:]
        if self.on_publish is not None:
            self.on_publish(more)
        self.added.extend(more)
        self.handed_over.extend(more)
        self._queue.extend((call, event) for event in more)
        self._work()
