"""Answers that do not come: whether it is for want of a topic, or of a partition's leader."""

import asyncio
import time
from math import inf

from quiesce.kafka.handle import Handle
from quiesce.kafka.partitions import partition_of
from quiesce.kafka.topics import Topics
from quiesce.outbox.event import ClaimedEvent

PATIENCE = 1.0
"""Seconds without all answers of a call after which it is asked why."""
_LONGEST_PAUSE = 8.0
"""Seconds between two questions, at most: they double while a broker is only slow."""


class Silence:
    """Asks why, for one call at a time."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._finding_out = False
        self._asked_at = -inf
        self._pause = PATIENCE

    async def drained(self, handle: Handle) -> bool:
        """Waits while nothing may be handed over; whether the handle is still usable then."""
        while handle.draining and handle.usable:
            await asyncio.wait({handle.over}, timeout=PATIENCE)
            await self.find_out(handle)
        return handle.usable

    async def find_out(self, handle: Handle) -> None:
        """Answers are late: where it is for want of a topic, or of a partition's leader, its events must not hold up
        the others.

        Once all others are answered the producer is over. What it could not send is told, and what cannot be sent to is
        known from then on.
        """
        now = time.monotonic()
        if now - self._asked_at > 2 * _LONGEST_PAUSE:
            self._pause = PATIENCE
        if self._finding_out or not handle.usable or now - self._asked_at < 0.9 * self._pause:
            return
        self._finding_out = True
        try:
            topics = {event.topic for flight in handle.answering.flights for event in flight.unanswered}
            if topics:
                await self._topics.look_at(topics, handle.over)
            handle.refusals.leaderless = self._topics.leaderless(topics)
            handle.refusals.gone = self._topics.gone(topics)
            # Not where something is wrong and nothing was sent to it: the others are only slow.
            stuck = self._stuck(handle)
            handle.draining = bool(stuck)
            if handle.draining and handle.queued() <= len(stuck):
                names = ", ".join(sorted({repr(event.topic) for event in stuck}))
                handle.fail(f"nothing can be sent to topics that are missing or have no leader ({names}); others go on")
        finally:
            self._asked_at = time.monotonic()
            self._pause = PATIENCE if handle.draining else min(_LONGEST_PAUSE, 2 * self._pause)
            self._finding_out = False

    def _stuck(self, handle: Handle) -> list[ClaimedEvent]:
        """The unanswered events that wait for a leader, or for their topic."""
        return [
            event
            for flight in handle.answering.flights
            for event in flight.unanswered
            if event.topic in handle.refusals.gone or self._leaderless(handle, event)
        ]

    def _leaderless(self, handle: Handle, event: ClaimedEvent) -> bool:
        partitions = self._topics.partitions(event.topic)
        if not partitions:
            return False
        return (event.topic, partition_of(event.aggregate_id, partitions)) in handle.refusals.leaderless
