"""Handing the events of one call over to the producer."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from math import inf
from uuid import UUID

from quiesce.kafka.blocking import until
from quiesce.kafka.flight import Flight
from quiesce.kafka.handle import Handle
from quiesce.kafka.silence import PATIENCE, Silence
from quiesce.kafka.topics import Topics
from quiesce.outbox.event import ClaimedEvent
from quiesce.outbox.outcome import DISPATCHED, Outcome

_CHUNK = 100
"""Events handed over without a turn of the loop: one to two milliseconds."""


async def hand_over(
    handle: Handle,
    flight: Flight,
    refusals: Sequence[tuple[ClaimedEvent, Outcome]],
    topics: Topics,
    silence: Silence,
) -> None:
    """Hands over the events of a call in order, without those that are refused already. It ends early, and the
    flight with it, when the handle is over."""
    for event, outcome in refusals:
        flight.refuse(event.id, outcome)
    done = {event.id for event, _ in refusals}
    await _send_pioneers(handle, flight, done, topics, silence)
    left = [event for event in flight.events if event.id not in done] if done else flight.events
    with _serving(handle, len(left)):
        for first in range(0, len(left), _CHUNK):
            await _offer(handle, flight, left[first : first + _CHUNK])
            if not handle.usable:
                flight.finish()
                return
            handle.serve()
            await asyncio.sleep(0)
    flight.handed_over()


async def _offer(handle: Handle, flight: Flight, events: Sequence[ClaimedEvent]) -> None:
    while len(events := events[handle.offer_all(flight, events) :]):
        # The local queue is full: wait at this event, so that the order stays. Reports make room.
        handle.loop_serves.clear()
        await until(partial(handle.offer, flight, events[0]), inf)
        events = events[1:]


@contextmanager
def _serving(handle: Handle, events: int) -> Iterator[None]:
    """Where many events are handed over, the loop serves the reports that come meanwhile."""
    if events >= _CHUNK:
        handle.loop_serves.set()
    try:
        yield
    finally:
        handle.loop_serves.clear()


async def _send_pioneers(handle: Handle, flight: Flight, done: set[UUID], topics: Topics, silence: Silence) -> None:
    """Hands over the first event for each partition that is new to this producer, adds it to `done`, and waits
    for the answers."""
    while handle.usable:
        if not handle.scouts:
            left = [event for event in flight.events if event.id not in done] if done else flight.events
            for event in handle.pioneers.among(left, topics.partitions):
                await until(partial(handle.offer, flight, event), inf)
                handle.scouts.append((flight, event))
                done.add(event.id)
        if not handle.scouts:
            return
        handle.hurry.set()
        if not await until(handle.scouts_are_back, time.monotonic() + PATIENCE, every=0.001):
            await silence.find_out(handle)
            continue
        for sender, event in handle.scouts:
            if sender.outcomes.get(event.id) == DISPATCHED:
                handle.pioneers.arrived(event, topics.partitions(event.topic))
        handle.scouts.clear()
        handle.hurry.clear()
