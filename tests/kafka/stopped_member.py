"""A member of a group that is stopped in the middle of a rebalance. Run by `test_source_stopped.py`.

It holds everything that it is given, says when the group wants some of it back, and at a line on stdin tries to
commit it all, again and again until it hears what has become of it.
"""

import asyncio
import logging
import sys

from quiesce.errors import CommitRefused, Unavailable
from quiesce.inbox.record import TopicPartition
from quiesce.kafka import KafkaSource
from quiesce.testing.contracts.expectations import within

BOUND = 30.0


async def main(bootstrap: str, topic: str, group: str, session: str, count: str) -> None:
    settings = {"session.timeout.ms": session, "heartbeat.interval.ms": 100}
    source = KafkaSource(bootstrap, topic, group=group, revoke_bound=120.0, settings=settings)
    leaving = asyncio.Event()
    source.watch(lambda: leaving.set() if source.leaving else None)
    await source.open()
    held: dict[TopicPartition, int] = {}
    number = records = 0
    while records < int(count):
        batch = await source.fetch(100)
        records += len(batch.records)
        held |= {record.source: record.offset + 1 for record in batch.records}
        number = batch.assignment if batch else number
    print("holds", flush=True)
    await leaving.wait()
    print("leaving", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    for partition, offset in held.items():
        try:
            await source.commit({partition: offset}, number, within(BOUND))
        except (CommitRefused, Unavailable) as error:
            print(type(error).__name__, flush=True)
        else:
            print("committed", flush=True)
    print(await source.close(within(BOUND)), flush=True)


if __name__ == "__main__":
    logging.getLogger("quiesce").addHandler(logging.NullHandler())
    asyncio.run(main(*sys.argv[1:]))
