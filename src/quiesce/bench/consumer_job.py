"""What one measured process of the consumer's bench is asked to do. It is handed over as one line of JSON."""

import json
from dataclasses import asdict, dataclass
from typing import Self

HANDLERS = ("nothing", "rows", "inbox")
"""What a handler does with a batch: nothing but to look at each record; it reads their JSON and writes a row a record,
in one transaction; the same with the inbox."""


@dataclass(frozen=True, slots=True)
class Job:
    """Records to be handled.

    Args:
        broker: the address for `bootstrap.servers`.
        topic: where they lie.
        group: a group that has read none of them.
        records: how many there are.
        page: most records of one batch, or of one call of `consume`.
        handler: one of `HANDLERS`. The bare loop does nothing with them.
        fetch_again: for the bare loop, librdkafka's `fetch.queue.backoff.ms`; 0 leaves it as it is.
        dsn: the database with the inbox's tables and `bench_effect`, where the handler writes.
    """

    broker: str
    topic: str
    group: str
    records: int
    page: int
    handler: str = "nothing"
    dsn: str = ""
    fetch_again: int = 0

    def dumps(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def loads(cls, text: str) -> Self:
        return cls(**json.loads(text))
