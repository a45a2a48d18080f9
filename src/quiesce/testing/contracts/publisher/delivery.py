"""What a publisher does while brokers answer: what it says, what is on the topic, and how it ends."""

import asyncio
from uuid import uuid4

from quiesce.errors import IntakeClosed
from quiesce.lifecycle.phases import Part
from quiesce.outbox.outcome import DISPATCHED, Dead, Retry
from quiesce.testing.contracts.expectations import closes_twice, is_a_resource_of, raised, within
from quiesce.testing.contracts.publisher.world import BOUND, PROMPT, Check, PublisherWorld, event, ids


async def is_a_resource_of_part_producers(world: PublisherWorld) -> None:
    is_a_resource_of(Part.PRODUCERS, await world.publisher())


async def dispatched_means_on_the_topic(world: PublisherWorld) -> None:
    publisher, topic = await world.publisher(), await world.topic()
    events = [event(topic, f"key {n % 7}") for n in range(500)]
    async with asyncio.timeout(BOUND):
        outcomes = await publisher.publish(events)
    assert outcomes == {one.id: DISPATCHED for one in events}
    assert sorted(map(str, ids(await world.records(topic)))) == sorted(str(one.id) for one in events)


async def a_record_is_the_event(world: PublisherWorld) -> None:
    publisher, topic = await world.publisher(), await world.topic()
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    sent = event(topic, "ключ", b"\x00body", traceparent=trace, colour="blue")
    await publisher.publish([sent])
    (record,) = await world.records(topic)
    assert record.key == "ключ".encode()
    assert record.value == b"\x00body"
    assert dict(record.headers) == {
        "id": str(sent.id).encode(),
        "type": b"Happened",
        "traceparent": trace.encode(),
        "colour": b"blue",
    }


async def no_payload_is_a_tombstone(world: PublisherWorld) -> None:
    publisher, topic = await world.publisher(), await world.topic()
    await publisher.publish([event(topic, payload=None)])
    (record,) = await world.records(topic)
    assert record.value is None


async def nothing_to_publish_is_nothing(world: PublisherWorld) -> None:
    publisher = await world.publisher()
    async with asyncio.timeout(BOUND):
        assert await publisher.publish([]) == {}


async def overlapping_calls_keep_the_order(world: PublisherWorld) -> None:
    publisher, topic = await world.publisher(), await world.topic()
    pages = [[event(topic, f"key {n % 3}") for n in range(250)] for _ in range(8)]
    async with asyncio.timeout(BOUND):
        await asyncio.gather(*(publisher.publish(page) for page in pages))
    records = await world.records(topic)
    for key in ("key 0", "key 1", "key 2"):
        handed_over = [str(one.id) for page in pages for one in page if one.aggregate_id == key]
        assert ids(records, key) == handed_over, f"{key} is out of order"


async def one_that_is_too_large_is_dead_at_once(world: PublisherWorld) -> None:
    publisher, topic = await world.publisher(), await world.topic()
    before, large, after = event(topic), event(topic, payload=b"x" * world.too_large), event(topic)
    async with asyncio.timeout(BOUND):
        outcomes = await publisher.publish([before, large, after])
    assert outcomes[before.id] == outcomes[after.id] == DISPATCHED
    dead = outcomes[large.id]
    assert isinstance(dead, Dead), dead
    assert dead.reason
    assert ids(await world.records(topic)) == [str(before.id), str(after.id)]


async def one_without_a_topic_waits_alone(world: PublisherWorld) -> None:
    publisher, topic = await world.publisher(), await world.topic()
    homeless, good = event(f"missing-{uuid4().hex[:8]}"), event(topic)
    async with asyncio.timeout(BOUND):
        outcomes = await publisher.publish([homeless, good])
    assert outcomes[good.id] == DISPATCHED
    retry = outcomes[homeless.id]
    assert isinstance(retry, Retry), retry
    assert retry.reason


async def a_cancel_does_not_take_messages_back(world: PublisherWorld) -> None:
    publisher, topic = await world.publisher(), await world.topic()
    await publisher.publish([event(topic, "first contact")])
    cancelled = event(topic)
    call = asyncio.ensure_future(publisher.publish([cancelled]))
    await asyncio.sleep(0)
    call.cancel()
    await asyncio.wait({call}, timeout=BOUND)
    assert call.cancelled()
    later = event(topic)
    async with asyncio.timeout(BOUND):
        await publisher.publish([later])
    # The order of a key holds: it may come or not, but not late.
    assert ids(await world.records(topic), "k")[-1] == str(later.id)
    assert (await publisher.close(within(BOUND))).undelivered == 0


async def a_broker_that_answers_is_reachable(world: PublisherWorld) -> None:
    publisher = await world.publisher()
    assert await publisher.reachable(within(BOUND))
    assert not await publisher.reachable(within(-1))


async def discarding_nothing_is_nothing(world: PublisherWorld) -> None:
    publisher, topic = await world.publisher(), await world.topic()
    assert await publisher.discard(within(PROMPT)) == 0
    only = event(topic)
    async with asyncio.timeout(BOUND):
        assert await publisher.publish([only]) == {only.id: DISPATCHED}


async def closing_flushes(world: PublisherWorld) -> None:
    publisher, topic = await world.publisher(), await world.topic()
    await publisher.publish([event(topic)])
    under_way = [event(topic) for _ in range(500)]
    call = asyncio.ensure_future(publisher.publish(under_way))
    await asyncio.sleep(0)
    closed = await publisher.close(within(BOUND))
    async with asyncio.timeout(BOUND):
        outcomes = await call
    # What it had not handed over yet it says nothing of, and never sends.
    assert closed.undelivered == 0
    assert len(await world.records(topic)) == 1 + len(outcomes)


async def closed_is_closed(world: PublisherWorld) -> None:
    publisher, topic = await world.publisher(), await world.topic()
    await closes_twice(publisher, BOUND)
    await raised(IntakeClosed, publisher.publish([event(topic)]), "a closed publisher took an event")


OF_DELIVERY: tuple[Check, ...] = (
    is_a_resource_of_part_producers,
    dispatched_means_on_the_topic,
    a_record_is_the_event,
    no_payload_is_a_tombstone,
    nothing_to_publish_is_nothing,
    overlapping_calls_keep_the_order,
    one_that_is_too_large_is_dead_at_once,
    one_without_a_topic_waits_alone,
    a_cancel_does_not_take_messages_back,
    a_broker_that_answers_is_reachable,
    discarding_nothing_is_nothing,
    closing_flushes,
    closed_is_closed,
)
