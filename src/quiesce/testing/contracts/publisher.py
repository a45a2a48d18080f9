"""The contract of `Publisher`."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol
from uuid import uuid4

from quiesce.errors import IntakeClosed
from quiesce.inbox.record import Record
from quiesce.lifecycle.deadline import Deadline
from quiesce.lifecycle.phases import Part
from quiesce.outbox.event import ClaimedEvent, PlainEvent
from quiesce.outbox.outcome import DISPATCHED, Dead, Retry
from quiesce.outbox.ports import Publisher

_BOUND = 10.0
"""Seconds after which a check says that something hangs."""
_PROMPT = 1.0
"""Seconds that giving up may take while no broker answers."""
_LET_IT_SINK_IN = 0.2
"""Seconds in which something is handed over that nobody answers."""


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


def within(seconds: float) -> Deadline:
    return Deadline(time.monotonic() + seconds)


def ids(records: Sequence[Record], key: str | None = None) -> list[str | None]:
    wanted = None if key is None else key.encode()
    return [record.event_id for record in records if wanted is None or record.key == wanted]


async def is_a_resource_of_part_producers(world: PublisherWorld) -> None:
    publisher = await world.publisher()
    assert publisher.name
    assert publisher.part is Part.PRODUCERS


async def dispatched_means_on_the_topic(world: PublisherWorld) -> None:
    publisher, topic = await world.publisher(), await world.topic()
    events = [event(topic, f"key {n % 7}") for n in range(500)]
    async with asyncio.timeout(_BOUND):
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
    async with asyncio.timeout(_BOUND):
        assert await publisher.publish([]) == {}


async def overlapping_calls_keep_the_order(world: PublisherWorld) -> None:
    publisher, topic = await world.publisher(), await world.topic()
    pages = [[event(topic, f"key {n % 3}") for n in range(250)] for _ in range(8)]
    async with asyncio.timeout(_BOUND):
        await asyncio.gather(*(publisher.publish(page) for page in pages))
    records = await world.records(topic)
    for key in ("key 0", "key 1", "key 2"):
        handed_over = [str(one.id) for page in pages for one in page if one.aggregate_id == key]
        assert ids(records, key) == handed_over, f"{key} is out of order"


async def one_that_is_too_large_is_dead_at_once(world: PublisherWorld) -> None:
    publisher, topic = await world.publisher(), await world.topic()
    before, large, after = event(topic), event(topic, payload=b"x" * world.too_large), event(topic)
    async with asyncio.timeout(_BOUND):
        outcomes = await publisher.publish([before, large, after])
    assert outcomes[before.id] == outcomes[after.id] == DISPATCHED
    dead = outcomes[large.id]
    assert isinstance(dead, Dead), dead
    assert dead.reason
    assert ids(await world.records(topic)) == [str(before.id), str(after.id)]


async def one_without_a_topic_waits_alone(world: PublisherWorld) -> None:
    publisher, topic = await world.publisher(), await world.topic()
    homeless, good = event(f"missing-{uuid4().hex[:8]}"), event(topic)
    async with asyncio.timeout(_BOUND):
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
    await asyncio.wait({call}, timeout=_BOUND)
    assert call.cancelled()
    later = event(topic)
    async with asyncio.timeout(_BOUND):
        await publisher.publish([later])
    # The order of a key holds: it may come or not, but not late.
    assert ids(await world.records(topic), "k")[-1] == str(later.id)
    assert (await publisher.close(within(_BOUND))).undelivered == 0


async def a_broker_that_answers_is_reachable(world: PublisherWorld) -> None:
    publisher = await world.publisher()
    assert await publisher.reachable(within(_BOUND))
    assert not await publisher.reachable(within(-1))


async def discarding_nothing_is_nothing(world: PublisherWorld) -> None:
    publisher, topic = await world.publisher(), await world.topic()
    assert await publisher.discard(within(_PROMPT)) == 0
    only = event(topic)
    async with asyncio.timeout(_BOUND):
        assert await publisher.publish([only]) == {only.id: DISPATCHED}


async def closing_flushes(world: PublisherWorld) -> None:
    publisher, topic = await world.publisher(), await world.topic()
    await publisher.publish([event(topic)])
    under_way = [event(topic) for _ in range(500)]
    call = asyncio.ensure_future(publisher.publish(under_way))
    await asyncio.sleep(0)
    closed = await publisher.close(within(_BOUND))
    async with asyncio.timeout(_BOUND):
        outcomes = await call
    # What it had not handed over yet it says nothing of, and never sends.
    assert closed.undelivered == 0
    assert len(await world.records(topic)) == 1 + len(outcomes)


async def closed_is_closed(world: PublisherWorld) -> None:
    publisher, topic = await world.publisher(), await world.topic()
    assert not (await publisher.close(within(_BOUND))).forced
    assert not (await publisher.close(within(_BOUND))).forced
    try:
        await publisher.publish([event(topic)])
    except IntakeClosed:
        return
    raise AssertionError("a closed publisher took an event")


async def silence_is_waited_out(world: PublisherWorld) -> None:
    publisher, topic = await world.publisher(), await world.topic()
    await publisher.publish([event(topic)])
    await world.silence()
    events = [event(topic) for _ in range(20)]
    call = asyncio.ensure_future(publisher.publish(events))
    done, _ = await asyncio.wait({call}, timeout=_LET_IT_SINK_IN)
    assert not done, "it gave up by itself"
    assert not await publisher.reachable(within(_LET_IT_SINK_IN))
    await world.speak()
    async with asyncio.timeout(_BOUND):
        assert await call == {one.id: DISPATCHED for one in events}
    assert ids(await world.records(topic))[1:] == [str(one.id) for one in events]


async def a_discard_ends_every_call(world: PublisherWorld) -> None:
    publisher, topic = await world.publisher(), await world.topic()
    known = event(topic)
    await publisher.publish([known])
    await world.silence()
    pages = [[event(topic) for _ in range(100)] for _ in range(3)]
    calls = [asyncio.ensure_future(publisher.publish(page)) for page in pages]
    # Until all of it has been handed over.
    await asyncio.wait(calls, timeout=5 * _LET_IT_SINK_IN)
    began = time.monotonic()
    assert await publisher.discard(within(_BOUND)) == 300
    assert time.monotonic() - began < _PROMPT, "it waited for a broker that is away"
    async with asyncio.timeout(_PROMPT):
        assert [await call for call in calls] == [{}, {}, {}], "an outcome without an answer"
    await world.speak()
    again = [event(topic) for _ in range(10)]
    async with asyncio.timeout(_BOUND):
        assert await publisher.publish(again) == {one.id: DISPATCHED for one in again}
    # What the network already had may have arrived, before anything that was published afterwards.
    assert ids(await world.records(topic))[-10:] == [str(one.id) for one in again]


async def what_came_before_a_discard_is_not_sent_after_it(world: PublisherWorld) -> None:
    publisher, topic = await world.publisher(), await world.topic()
    await publisher.publish([event(topic)])
    await world.silence()
    old = [asyncio.ensure_future(publisher.publish([event(topic) for _ in range(1000)])) for _ in range(5)]
    await asyncio.sleep(0)
    given_up = asyncio.ensure_future(publisher.discard(within(_BOUND)))
    # Made while the discard is under way, but after it.
    await asyncio.wait({given_up}, timeout=_BOUND)
    fresh = event(topic)
    call = asyncio.ensure_future(publisher.publish([fresh]))
    async with asyncio.timeout(_PROMPT):
        assert [await one for one in old] == [{}] * 5
    await world.speak()
    async with asyncio.timeout(_BOUND):
        assert await call == {fresh.id: DISPATCHED}
        last = event(topic)
        await publisher.publish([last])
    assert ids(await world.records(topic))[-2:] == [str(fresh.id), str(last.id)]


async def closing_in_silence_is_bounded_and_counts(world: PublisherWorld) -> None:
    publisher, topic = await world.publisher(), await world.topic()
    await publisher.publish([event(topic)])
    await world.silence()
    events = [event(topic) for _ in range(30)]
    call = asyncio.ensure_future(publisher.publish(events))
    await asyncio.wait({call}, timeout=_LET_IT_SINK_IN)
    began = time.monotonic()
    closed = await publisher.close(within(_PROMPT))
    assert time.monotonic() - began < 2 * _PROMPT
    assert closed.forced
    assert closed.undelivered == 30
    async with asyncio.timeout(_PROMPT):
        assert await call == {}


CHECKS: tuple[Check, ...] = (
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
"""They disturb nobody: a broker may be shared."""

SILENCE_CHECKS: tuple[Check, ...] = (
    silence_is_waited_out,
    a_discard_ends_every_call,
    what_came_before_a_discard_is_not_sent_after_it,
    closing_in_silence_is_bounded_and_counts,
)
"""They silence the broker."""
