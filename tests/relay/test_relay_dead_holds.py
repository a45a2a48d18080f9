"""A dead letter that holds its key, from the table to Kafka: the policy counts before anything behind it is sent."""

import asyncio
import time
from collections.abc import Callable

import pytest
from broker import records

from quiesce.kafka import KafkaPublisher
from quiesce.lifecycle.deadline import Deadline
from quiesce.outbox import OutboxEvent
from quiesce.postgres import OutboxLog, connect, enqueue
from quiesce.relay import Relay
from quiesce.testing.manual_stop import ManualStop
from quiesce_pytest import MakeTopic

pytestmark = pytest.mark.needs("kafka")


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(15):
        while not await asyncio.to_thread(holds):
            await asyncio.sleep(0.05)


async def test_O6_what_is_in_the_same_page_behind_a_dead_letter_that_holds_its_key_is_not_sent(
    database: str, kafka: str, topic: MakeTopic
) -> None:
    strict, lenient = (topic("limited", 1, **{"max.message.bytes": "3000"}) for _ in range(2))
    events = [
        OutboxEvent(name, key, "Happened", payload)
        for name in (strict, lenient)
        for key, payload in [("k", b"before"), ("k", b"x" * 5000), ("k", b"behind"), ("other", b"flows")]
    ]
    async with connect(database) as connection, connection.transaction():
        for event in events:
            await enqueue(connection, event)
    store = OutboxLog(database, dead={strict: "hold_key"})
    publisher = KafkaPublisher(kafka)
    relay, stop = Relay(store, publisher), ManualStop("relay")
    await store.open()
    await publisher.open()
    running = asyncio.ensure_future(relay.run(stop))

    def values(name: str) -> list[bytes | None]:
        return [record.value for record in records(kafka, name)]

    await until(lambda: len(values(lenient)) == 3 and len(values(strict)) == 2)
    # What comes later has passed what must not come.
    async with connect(database) as connection, connection.transaction():
        await enqueue(connection, OutboxEvent(strict, "k", "Happened", b"held as well"))
        await enqueue(connection, OutboxEvent(strict, "other", "Happened", b"later"))
    await until(lambda: b"later" in values(strict))
    stop.now(within=5.0)
    await running
    await publisher.close(Deadline(time.monotonic() + 5))
    await store.close(Deadline(time.monotonic() + 5))
    assert values(strict) == [b"before", b"flows", b"later"]
    assert sorted(map(str, values(lenient))) == sorted(map(str, [b"before", b"behind", b"flows"]))
    async with connect(database) as connection:
        rows = await connection.fetch("SELECT state, attempts FROM outbox_parked ORDER BY position")
    states = [row["state"] for row in rows]
    assert sorted(states) == ["dead", "dead", "held", "held"]
    assert not any(row["attempts"] for row in rows if row["state"] == "held")
