"""Handing the events of one call over to the producer, and what of them cannot go, which is found out before."""

import asyncio
import time
from collections.abc import Collection, Sequence
from functools import partial
from math import inf

from quiesce.kafka.blocking import in_thread, until
from quiesce.kafka.flight import Flight, Report
from quiesce.kafka.handle import Handle
from quiesce.kafka.outgoing import Lot
from quiesce.kafka.silence import PATIENCE, Silence
from quiesce.kafka.topics import Topics
from quiesce.outbox.event import ClaimedEvent, Outgoing
from quiesce.outbox.outcome import DISPATCHED, Outcome

_MANY = 100
"""Events of a call from which on the loop serves reports while they are handed over, and has its other turns."""
_CHUNK = 250
"""Events handed over without a turn of the loop: some half a millisecond."""

_SHORT_QUEUE = 20
"""Messages that wait for their answers, at most, when a call under way is made longer: there is room in the queue."""


def may_be_longer(handle: Handle, flight: Flight, more: Sequence[ClaimedEvent], topics: Topics) -> bool:
    """Whether these events may go along with a call under way, at once: nothing need be asked, nothing waited for."""
    lot = Lot(more)
    return (
        handle.usable
        and not handle.draining
        and handle.answering.takes(flight, len(more))
        and handle.queued() < _SHORT_QUEUE
        and handle.pioneers.proven(lot.topics)
        and topics.well(lot)
    )


def make_longer(handle: Handle, flight: Flight, known: int) -> None:
    """Hands over the events that have come to the call's sequence behind the `known` ones."""
    flight.grown()
    more = Lot(flight.events[known:])
    if handle.offer_all(flight, more.events, more.outgoing, flight.reports[known:]) < len(more.events):
        # A fatal error, or a queue shorter than anybody would make it. What is missing must not be overtaken.
        handle.fail(handle.takes_nothing or "its local queue is full")


async def cannot_go(handle: Handle, lot: Lot, topics: Topics) -> list[tuple[ClaimedEvent, Outcome]]:
    """The events of a call that cannot be sent now, or never, each with its outcome. Topics that the producer has
    found shut are asked about again, and librdkafka is made to."""
    shut = {topic: handle.refusals.shut.pop(topic) for topic in lot.topics if topic in handle.refusals.shut}
    if shut:
        topics.shut(shut)
    found = await topics.refusals(lot, handle.over)
    again = shut.keys() - {event.topic for event, _ in found}
    if again:
        asked = in_thread("quiesce-kafka-topics", handle.look_again(again))
        await asyncio.wait({asked, handle.over}, return_when=asyncio.FIRST_COMPLETED)
    return found


async def hand_over(
    handle: Handle,
    flight: Flight,
    lot: Lot,
    refusals: Sequence[tuple[ClaimedEvent, Outcome]],
    topics: Topics,
    silence: Silence,
) -> None:
    """Hands over the events of a call in order, without those that are refused already. It ends early, and the
    flight with it, when the handle is over."""
    done = _refuse(flight, refusals) if refusals else set()
    await _send_pioneers(handle, flight, lot.topics, done, topics, silence)
    events, outgoing, reports = lot.events, lot.outgoing, flight.reports
    if done:
        left = [place for place in range(len(events)) if place not in done]
        events, reports = [events[place] for place in left], [reports[place] for place in left]
        outgoing = [outgoing[place] for place in left]
    for first in range(0, len(events), _CHUNK):
        chunk = slice(first, first + _CHUNK)
        await _offer(handle, flight, events[chunk], outgoing[chunk], reports[chunk])
        if not handle.usable:
            flight.finish()
            return
        if len(events) >= _MANY:
            handle.answering.serve()
            await asyncio.sleep(0)
    flight.handed_over()


def _refuse(flight: Flight, refusals: Sequence[tuple[ClaimedEvent, Outcome]]) -> set[int]:
    """The places of what is refused."""
    refused = {event.id: outcome for event, outcome in refusals}
    for event_id, outcome in refused.items():
        flight.refuse(event_id, outcome)
    return {place for place, event in enumerate(flight.events) if event.id in refused}


async def _offer(
    handle: Handle,
    flight: Flight,
    events: Sequence[ClaimedEvent],
    outgoing: Sequence[Outgoing],
    reports: Sequence[Report],
) -> None:
    while (taken := handle.offer_all(flight, events, outgoing, reports)) < len(events):
        # The local queue is full: wait at this event, so that the order stays. Reports make room.
        await until(partial(handle.offer, flight, events[taken], reports[taken]), inf)
        events, outgoing, reports = events[taken + 1 :], outgoing[taken + 1 :], reports[taken + 1 :]


async def _send_pioneers(
    handle: Handle, flight: Flight, topics_of: Collection[str], done: set[int], topics: Topics, silence: Silence
) -> None:
    """Hands over the first event for each partition that is new to this producer, adds its place to `done`, and
    waits for the answers."""
    while handle.usable:
        if not handle.scouts:
            for place in handle.pioneers.among(flight.events, topics_of, done, topics.partitions):
                event = flight.events[place]
                await until(partial(handle.offer, flight, event, flight.reports[place]), inf)
                handle.scouts.append((flight, event))
                done.add(place)
        if not handle.scouts:
            return
        handle.answering.hurry()
        if not await until(handle.scouts_are_back, time.monotonic() + PATIENCE, every=0.001):
            await silence.find_out(handle)
            continue
        for sender, event in handle.scouts:
            if sender.outcomes.get(event.id) == DISPATCHED:
                handle.pioneers.arrived(event, topics.partitions(event.topic))
        handle.scouts.clear()
        handle.answering.calm_down()
