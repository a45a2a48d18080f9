"""What a publisher does while no broker answers: it waits, and what it gives up never comes late."""

import asyncio
import time

from quiesce.outbox.outcome import DISPATCHED
from quiesce.outbox.ports import Publisher
from quiesce.testing.contracts.expectations import within
from quiesce.testing.contracts.publisher.world import BOUND, PROMPT, Check, PublisherWorld, event, ids

_LET_IT_SINK_IN = 0.2
"""Seconds in which something is handed over that nobody answers."""


async def _cut_off(world: PublisherWorld) -> tuple[Publisher, str]:
    """A publisher that has reached its topic once, and now gets no answer any more; and the topic."""
    publisher, topic = await world.publisher(), await world.topic()
    await publisher.publish([event(topic)])
    await world.silence()
    return publisher, topic


async def silence_is_waited_out(world: PublisherWorld) -> None:
    publisher, topic = await _cut_off(world)
    events = [event(topic) for _ in range(20)]
    call = asyncio.ensure_future(publisher.publish(events))
    done, _ = await asyncio.wait({call}, timeout=_LET_IT_SINK_IN)
    assert not done, "it gave up by itself"
    assert not await publisher.reachable(within(_LET_IT_SINK_IN))
    await world.speak()
    async with asyncio.timeout(BOUND):
        assert await call == {one.id: DISPATCHED for one in events}
    assert ids(await world.records(topic))[1:] == [str(one.id) for one in events]


async def a_discard_ends_every_call(world: PublisherWorld) -> None:
    publisher, topic = await _cut_off(world)
    pages = [[event(topic) for _ in range(100)] for _ in range(3)]
    calls = [asyncio.ensure_future(publisher.publish(page)) for page in pages]
    # Until all of it has been handed over. In pieces: a machine that stands still for a while uses up only one of them.
    for _ in range(5):
        await asyncio.wait(calls, timeout=_LET_IT_SINK_IN)
    began = time.monotonic()
    assert await publisher.discard(within(BOUND)) == 300
    assert time.monotonic() - began < PROMPT, "it waited for a broker that is away"
    async with asyncio.timeout(PROMPT):
        assert [await call for call in calls] == [{}, {}, {}], "an outcome without an answer"
    await world.speak()
    again = [event(topic) for _ in range(10)]
    async with asyncio.timeout(BOUND):
        assert await publisher.publish(again) == {one.id: DISPATCHED for one in again}
    # What the network already had may have arrived, before anything that was published afterwards.
    assert ids(await world.records(topic))[-10:] == [str(one.id) for one in again]


async def what_came_before_a_discard_is_not_sent_after_it(world: PublisherWorld) -> None:
    publisher, topic = await _cut_off(world)
    old = [asyncio.ensure_future(publisher.publish([event(topic) for _ in range(1000)])) for _ in range(5)]
    await asyncio.sleep(0)
    given_up = asyncio.ensure_future(publisher.discard(within(BOUND)))
    # Made while the discard is under way, but after it.
    await asyncio.wait({given_up}, timeout=BOUND)
    fresh = event(topic)
    call = asyncio.ensure_future(publisher.publish([fresh]))
    async with asyncio.timeout(PROMPT):
        assert [await one for one in old] == [{}] * 5
    await world.speak()
    async with asyncio.timeout(BOUND):
        assert await call == {fresh.id: DISPATCHED}
        last = event(topic)
        await publisher.publish([last])
    assert ids(await world.records(topic))[-2:] == [str(fresh.id), str(last.id)]


async def closing_in_silence_is_bounded_and_counts(world: PublisherWorld) -> None:
    publisher, topic = await _cut_off(world)
    events = [event(topic) for _ in range(30)]
    call = asyncio.ensure_future(publisher.publish(events))
    await asyncio.wait({call}, timeout=_LET_IT_SINK_IN)
    began = time.monotonic()
    closed = await publisher.close(within(PROMPT))
    assert time.monotonic() - began < 2 * PROMPT
    assert closed.forced
    assert closed.undelivered == 30
    async with asyncio.timeout(PROMPT):
        assert await call == {}


OF_SILENCE: tuple[Check, ...] = (
    silence_is_waited_out,
    a_discard_ends_every_call,
    what_came_before_a_discard_is_not_sent_after_it,
    closing_in_silence_is_bounded_and_counts,
)
