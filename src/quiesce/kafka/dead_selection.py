"""Which dead letters an operator means. Pure."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from quiesce.inbox.record import Record
from quiesce.inbox.retry_headers import CONSUMER, REASON, origin


@dataclass(frozen=True, slots=True)
class Selection:
    """Those that match all that is given. Nothing given: all of them."""

    partitions: Collection[int] = ()
    offsets: Collection[int] = ()
    keys: Collection[str] = ()
    events: Collection[str] = ()
    origins: Collection[str] = ()
    """Topics in which they were first read."""
    reasons: Collection[str] = ()
    consumers: Collection[str] = ()
    since: datetime | None = None
    """Set aside at this time or later."""
    until: datetime | None = None
    """Set aside before this time."""

    @property
    def everything(self) -> bool:
        return not any(
            (
                self.partitions,
                self.offsets,
                self.keys,
                self.events,
                self.origins,
                self.reasons,
                self.consumers,
                self.since,
                self.until,
            )
        )

    def matches(self, letter: Record) -> bool:
        return (
            (not self.partitions or letter.partition in self.partitions)
            and (not self.offsets or letter.offset in self.offsets)
            and (not self.keys or (letter.key is not None and letter.key.decode(errors="replace") in self.keys))
            and (not self.events or letter.event_id in self.events)
            and (not self.origins or origin(letter).topic in self.origins)
            and (not self.reasons or letter.header(REASON) in self.reasons)
            and (not self.consumers or letter.header(CONSUMER) in self.consumers)
            and (self.since is None or letter.timestamp >= self.since.timestamp())
            and (self.until is None or letter.timestamp < self.until.timestamp())
        )
