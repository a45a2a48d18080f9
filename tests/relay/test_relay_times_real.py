"""The times that a relay tells, over the log store and real Kafka."""

import asyncio

import pytest
from relays_on_kafka import MakeTopic, relay_over, running, until

from quiesce.outbox import OutboxEvent
from quiesce.outbox.events import ClaimSettled, LanesTakenOver
from quiesce.postgres import connect, enqueue

pytestmark = pytest.mark.needs("kafka")

HELD_OPEN = 1.0


async def test_the_time_in_the_outbox_begins_with_the_writers_transaction(
    database: str, kafka: str, topic: MakeTopic
) -> None:
    name = topic("orders", partitions=1)
    loop = asyncio.get_running_loop()
    async with running(relay_over(database, kafka)) as (stop,), connect(database) as db:
        began = loop.time()
        async with db.transaction():
            await enqueue(db, OutboxEvent(name, "k", "Placed", b"{}"))
            # No wait for anything: this is how long the transaction lasts.
            await asyncio.sleep(HELD_OPEN)
        await until(lambda: stop.told(ClaimSettled))
        (settled,) = stop.told(ClaimSettled)
        assert settled.waited_seconds is not None
        assert HELD_OPEN <= settled.waited_seconds <= loop.time() - began


async def test_who_follows_a_relay_tells_how_long_its_lanes_waited(database: str, kafka: str, topic: MakeTopic) -> None:
    async with running(relay_over(database, kafka, "second")) as (second,):
        async with running(relay_over(database, kafka, "first")) as (first,):
            # Eight are handed over by the one that was alone.
            await until(lambda: sum(told.lanes for told in first.told(LanesTakenOver)) == 8)
            assert not second.told(LanesTakenOver)
            left_at = asyncio.get_running_loop().time()
        await until(lambda: second.told(LanesTakenOver))
        waited = asyncio.get_running_loop().time() - left_at
        back = second.told(LanesTakenOver)
        assert {told.relay for told in back} == {"second"}
        # It looks ten times a second, or so: it saw them with the other a moment before that one left.
        assert max(told.seconds for told in back) < waited + 1.0
