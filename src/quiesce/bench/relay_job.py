"""What one measured process of the relay's bench is asked to do. It is handed over as one line of JSON."""

import json
from dataclasses import asdict, dataclass, replace
from typing import Self


@dataclass(frozen=True, slots=True)
class Job:
    """A backlog to be moved, or a relay to be kept running.

    Args:
        dsn: the database with the tables.
        broker: the address for `bootstrap.servers`.
        topic: where the events go.
        store: `log` or `row`.
        events: how many there are to move. 0: it runs until SIGTERM.
        page: most events of one claim, or of one page of a bare loop.
        pages: most pages in flight.
        gauge: the file of a `Gauge` that it keeps; empty for none.
        listens: it is woken by notifications of writers, too.
        bulk: it has a backlog before it, which wants full batches; a single event wants to go at once.
    """

    dsn: str
    broker: str
    topic: str
    store: str
    events: int
    page: int = 5000
    pages: int = 4
    gauge: str = ""
    listens: bool = False
    bulk: bool = False

    def dumps(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def loads(cls, text: str) -> Self:
        return cls(**json.loads(text))

    def on(self, dsn: str) -> "Job":
        """The same on another database."""
        return replace(self, dsn=dsn)


PRODUCER: dict[str, str | int | float | bool] = {
    "acks": "all",
    "enable.idempotence": True,
    "linger.ms": 5,
    "batch.size": 1_000_000,
    "batch.num.messages": 10_000,
    "queue.buffering.max.messages": 200_000,
}
"""What the bare loops and the relay tell librdkafka alike, beside what the relay insists on. With less time to gather
batches the broker works harder, on the same cores; with more, pages wait for them."""
