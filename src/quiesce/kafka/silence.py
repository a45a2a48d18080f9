"""Answers that do not come: whether it is for want of a partition's leader."""

import asyncio
import time
from math import inf

from quiesce.kafka.handle import Handle
from quiesce.kafka.partitions import partition_of
from quiesce.kafka.topics import Topics

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
        """Answers are late: where it is for want of a partition's leader, its events must not hold up the others.

        Once all others are answered the producer is over. What it could not send is told, and partitions
        without a leader are known from then on.
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
            handle.leaderless = self._topics.leaderless(topics)
            # Not where a partition has no leader and nothing was sent to it: the others are only slow.
            stuck = self._stuck(handle)
            handle.draining = stuck > 0
            if handle.draining and handle.queued() <= stuck:
                handle.fail("nothing can be sent to partitions without a leader; the others go on")
        finally:
            self._asked_at = time.monotonic()
            self._pause = PATIENCE if handle.draining else min(_LONGEST_PAUSE, 2 * self._pause)
            self._finding_out = False

    def _stuck(self, handle: Handle) -> int:
        """How many unanswered events wait for a leader."""
        return sum(
            (event.topic, partition_of(event.aggregate_id, self._topics.partitions(event.topic))) in handle.leaderless
            for flight in handle.answering.flights
            for event in flight.unanswered
            if self._topics.partitions(event.topic)
        )
