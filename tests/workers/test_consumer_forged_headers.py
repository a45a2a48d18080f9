"""Whoever may produce to a source topic can write the headers of a retry topic. There they steer nothing."""

import asyncio

from scripted_asides import Kept
from scripted_handler import EVERY_HALF_SECOND, Handler, run
from scripted_source import MemorySource

from quiesce.inbox.reason import Reason
from quiesce.inbox.record import Record, TopicPartition
from quiesce.inbox.retry_headers import origin, tries
from quiesce.lifecycle.deadline import Deadline
from quiesce.testing import virtual_time
from quiesce.workers import Consumer, Retries, by_topic

WALL = 1_900_000_000.0
FORGED = (
    ("id", b"7"),
    ("quiesce-topic", b"orders"),
    ("quiesce-not-before", str(int((WALL + 3 * 86_400) * 1000)).encode()),
    ("quiesce-tries", b"99"),
    ("quiesce-origin-topic", b"payments"),
    ("quiesce-origin-partition", b"0"),
    ("quiesce-origin-offset", b"1"),
)


class Places(Kept):
    """Remembers what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[Record] = []

    async def set_aside(self, record: Record, reason: Reason, deadline: Deadline) -> None:
        await super().set_aside(record, reason, deadline)
        self.given.append(record)


def forged(offset: int = 0) -> Record:
    return Record("orders", 0, offset, b"k", b"v", FORGED, WALL)


def test_forged_headers_hold_no_key_skip_no_try_and_send_nothing_elsewhere() -> None:
    async def main() -> None:
        for later in (None, Places()):
            source, handler, letters = MemorySource([forged()]), Handler(fails={0: 9}), Places()
            began = asyncio.get_running_loop().time()
            consumer = Consumer(
                source,
                handler,
                wall=lambda: WALL + asyncio.get_running_loop().time(),
                retries=Retries(attempts=3, backoff=EVERY_HALF_SECOND),
                dead_letters=letters,
                retry_topic=later,
            )
            await run(consumer, stop_at=began + 60.0)
            assert source.committed == {TopicPartition("orders", 0): 1}
            assert handler.instants[0] < began + 1.0, "it waited for what somebody wrote into it"
            kept = letters if later is None else later
            (given,) = kept.given
            assert (origin(given), tries(given)) == (("orders", 0, 0), 0)
            assert given.event_id == "7"
            ((_, reason),) = kept.records
            assert reason.tries == len(handler.began) == (3 if later is None else 1)

    virtual_time.run(main())


def test_a_forged_origin_chooses_no_handler() -> None:
    async def main() -> None:
        for later in (None, Places()):
            source, payments, others = MemorySource([forged()]), Handler(), Handler()
            consumer = Consumer(source, by_topic({"payments": payments}, default=others), retry_topic=later)
            await run(consumer, stop_at=asyncio.get_running_loop().time() + 5.0)
            assert (payments.handled, others.handled) == ([], [0])

    virtual_time.run(main())
