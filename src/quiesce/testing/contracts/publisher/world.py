"""What the checks of a `Publisher` need, and what they do with it."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol
from uuid import uuid4

from quiesce.inbox.record import Record
from quiesce.outbox.event import ClaimedEvent, PlainEvent
from quiesce.outbox.ports import Publisher

BOUND = 10.0
"""Seconds after which a check says that something hangs."""
PROMPT = 1.0
"""Seconds that giving up may take while no broker answers."""


class PublisherWorld(Protocol):
    """What a check needs of an adapter: publishers, and a broker behind them that can be looked into."""

    @property
    def too_large(self) -> int:
        """Bytes of a payload that no topic of this world takes."""
        ...

    async def publisher(self) -> Publisher:
        """A new publisher, open. The world closes it if the check does not."""
        ...

    async def topic(self) -> str:
        """A new topic with several partitions."""
        ...

    async def records(self, topic: str) -> Sequence[Record]:
        """Everything on the topic, each partition in its order."""
        ...

    async def silence(self) -> None:
        """From now on no broker answers; connections may stay open."""
        ...

    async def speak(self) -> None:
        """Brokers answer again."""
        ...


Check = Callable[[PublisherWorld], Awaitable[None]]


def event(topic: str, key: str = "k", payload: bytes | None = b"{}", **headers: str) -> ClaimedEvent:
    """An event as a relay has claimed it. A relay's publisher never looks at the position."""
    return PlainEvent(0, uuid4(), key, topic, "Happened", payload, headers)


def ids(records: Sequence[Record], key: str | None = None) -> list[str | None]:
    wanted = None if key is None else key.encode()
    return [record.event_id for record in records if wanted is None or record.key == wanted]
