"""What a consumer was told, checked once."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from quiesce.inbox import retry_headers
from quiesce.inbox.ports import CountsStarts, Postpones, SaysRevokeBound, SetsAside, Source
from quiesce.inbox.record import Record
from quiesce.lifecycle.ports import OnDrain
from quiesce.workers.bad_input import BadInput, Decode
from quiesce.workers.handlers import Batches, OneForAll, Routes
from quiesce.workers.probe import Ask
from quiesce.workers.retries import Retries

REVOKE_BOUND = 5.0
"""Seconds that a source waits before it lets go, where it does not say."""


@dataclass(frozen=True, slots=True)
class Terms:
    """The settings of one consumer. `Consumer` says what each means."""

    name: str
    source: Source
    handlers: Routes | Batches | OneForAll
    args: tuple[Any, ...]
    batch: int
    concurrency: int
    in_flight: int
    free_nulls: bool
    handler_bound: float | None
    retries: Retries
    probe: Ask | None
    dead_letters: SetsAside | None
    retry_topic: Postpones | None
    starts: CountsStarts | None
    deaths: int
    bad_input: BadInput
    decode: Decode | None
    on_drain: OnDrain
    wall: Callable[[], float]

    def came_back(self, record: Record) -> bool:
        """Whether it stands in our retry topic. What the `quiesce-` headers of others say steers nothing."""
        return self.retry_topic is not None and retry_headers.came_back(record, self.retry_topic.topic_of)

    def believed(self, record: Record) -> Record:
        """The record with those headers that may be believed: for what is to be counted or given on."""
        return retry_headers.believed(record, None if self.retry_topic is None else self.retry_topic.topic_of)

    @property
    def revoke_bound(self) -> float:
        """Seconds until the source lets go of what the group takes back."""
        return self.source.revoke_bound if isinstance(self.source, SaysRevokeBound) else REVOKE_BOUND

    @property
    def in_batches(self) -> bool:
        return isinstance(self.handlers, Batches)
