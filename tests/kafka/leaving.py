"""A process that is to end while its broker does not answer. Run by `test_exit.py`.

It says "ready" when it has spoken with the broker, waits for a line, does what it was asked to, and ends.
"""

import asyncio
import logging
import sys

from quiesce.kafka import KafkaPublisher, KafkaSource
from quiesce.testing.contracts.publisher import event, within
from quiesce.testing.contracts.source import hold


async def told(word: str) -> None:
    print(word, flush=True)
    await asyncio.to_thread(sys.stdin.readline)


async def publisher(bootstrap: str, topic: str, group: str) -> None:
    producer = await KafkaPublisher(bootstrap).open()
    await producer.publish([event(topic)])
    await told("ready")
    waiting = asyncio.ensure_future(producer.publish([event(topic)]))
    await asyncio.wait({waiting}, timeout=0.2)
    print(await producer.close(within(0.5)), await waiting)


async def publisher_not_closed(bootstrap: str, topic: str, group: str) -> None:
    producer = await KafkaPublisher(bootstrap).open()
    await producer.publish([event(topic)])
    await told("ready")
    waiting = asyncio.ensure_future(producer.publish([event(topic)]))
    await asyncio.wait({waiting}, timeout=0.2)


async def publisher_discarded(bootstrap: str, topic: str, group: str) -> None:
    producer = await KafkaPublisher(bootstrap).open()
    await producer.publish([event(topic)])
    await told("ready")
    for _ in range(3):
        waiting = asyncio.ensure_future(producer.publish([event(topic)]))
        await asyncio.wait({waiting}, timeout=0.1)
        await producer.discard(within(0.2))
    asking = asyncio.ensure_future(producer.reachable(within(60)))
    await asyncio.wait({asking}, timeout=0.1)
    asking.cancel()


async def source(bootstrap: str, topic: str, group: str) -> None:
    await source_not_closed(bootstrap, topic, group, close=True)


async def source_not_closed(bootstrap: str, topic: str, group: str, close: bool = False) -> None:
    producer = await KafkaPublisher(bootstrap).open()
    await producer.publish([event(topic)])
    await producer.close(within(5))
    consumer = await KafkaSource(bootstrap, topic, group=group).open()
    held, number = await hold(consumer, 1)
    await told("ready")
    committing = asyncio.ensure_future(consumer.commit({held[0].source: held[0].offset + 1}, number, within(60)))
    await asyncio.wait({committing}, timeout=0.2)
    if close:
        print(await consumer.close(within(0.5)))
    committing.cancel()


if __name__ == "__main__":
    # What librdkafka has to say goes to logging: then nothing is on stderr.
    logging.getLogger("quiesce").addHandler(logging.NullHandler())
    asyncio.run(globals()[sys.argv[1]](*sys.argv[2:]))
