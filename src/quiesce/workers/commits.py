"""How a consumer commits: bounded, again and again while brokers are away, and never under an assignment
that is over."""

import asyncio
import logging
from math import inf

from quiesce.errors import CommitRefused, Unavailable
from quiesce.inbox.events import BatchHandled, CommitLate
from quiesce.inbox.ports import Source
from quiesce.lifecycle.backoff import Backoff
from quiesce.lifecycle.deadline import Deadline
from quiesce.lifecycle.ports import Stop
from quiesce.workers.in_hand import InHand

log = logging.getLogger("quiesce.workers")

COMMIT_BOUND = 5.0
"""Seconds for one try, and for all tries once a stop is requested."""

ABORT_BOUND = 1.0
"""Seconds for the one try of a consumer that is being aborted."""


_STOPPING_WAIT = 0.1
"""Seconds between two tries once a stop is requested."""


def commit_reserve(allowed: float) -> float:
    """The last seconds of a drain of `allowed` seconds, kept for the commit: a tenth, at most one second."""
    return min(1.0, allowed / 10)


class Commits:
    """The commits of one run of a consumer."""

    def __init__(self, consumer: str, source: Source, stop: Stop) -> None:
        self._consumer = consumer
        self._source = source
        self._stop = stop
        self._now = asyncio.get_running_loop().time
        self._backoff = Backoff(first=0.1, ceiling=5.0)
        self._allowed: float | None = None

    def last_call(self) -> bool:
        """Whether a drain is so far on that no further record may begin: only the commit still fits."""
        if not self._stop.requested:
            return False
        if self._allowed is None:
            self._allowed = self._stop.remaining()
        return self._stop.remaining() <= commit_reserve(self._allowed)

    async def make(self, hand: InHand, began: float) -> None:
        """Commits the handled prefix of the iteration that `began` then.

        While brokers are away it holds and tries again: until a stop, and then for a little longer. What is
        refused is put out of the hand, with all that is left of its partition.
        """
        attempt = 0
        give_up_at = inf
        while offsets := hand.to_commit():
            try:
                deadline = Deadline(min(self._deadline().at, give_up_at))
                await self._source.commit(offsets, hand.assignment, deadline)
            except CommitRefused:
                # Of some partition. Which ones are still ours shows one by one.
                await self.sift(hand, began)
                return
            except Unavailable as error:
                attempt += 1
                if attempt == 1:
                    # Once an outage: a line per try would bury everything else.
                    log.warning("%s: cannot commit, trying again until it works: %s", self._consumer, error)
                if not self._stop.requested:
                    await self._stop.sleep(self._backoff.wait(attempt))
                    continue
                # Fixed at the first sight of the stop: a share of what is left, again and again, adds up to all.
                give_up_at = min(give_up_at, self._deadline().at)
                if self._now() + _STOPPING_WAIT >= give_up_at:
                    return
                await asyncio.sleep(_STOPPING_WAIT)
            else:
                if attempt:
                    log.info("%s: commits are answered again", self._consumer)
                self._committed(hand.confirmed(), began)

    async def sift(self, hand: InHand, began: float) -> None:
        """Asks partition by partition whether it is still ours, and puts the others out of the hand.

        Each commits its place once more. Nothing moves by that, but only the answer tells; without asking, a
        record that keeps failing would be tried for ever beside its new owner. And what is still ours must
        stay: the source will not deliver it again.
        """
        committed = late = 0
        for partition in sorted(hand.partitions):
            try:
                await self._source.commit(hand.place(partition), hand.assignment, self._deadline())
            except CommitRefused as error:
                log.info("%s: gone to a new owner, who goes on: %s", self._consumer, error)
                late += hand.lose(partition)
            except Unavailable as error:
                # Nobody knows. It stays in hand; its commit is made, or refused, with the next one.
                log.warning("%s: no answer whether %s is still ours: %s", self._consumer, partition, error)
            else:
                committed += hand.confirm(partition)
        if committed:
            self._committed(committed, began)
        if late:
            self._stop.tell(CommitLate(self._consumer, late))

    async def save(self, hand: InHand) -> None:
        """The commit of a consumer that is being aborted: what is handled, in one bounded try."""
        offsets = hand.to_commit()
        if not offsets:
            return
        deadline = Deadline(self._now() + ABORT_BOUND)
        try:
            async with asyncio.timeout_at(deadline.at):
                await self._source.commit(offsets, hand.assignment, deadline)
        except (CommitRefused, Unavailable, TimeoutError) as error:
            log.warning("%s: aborted before its commit, its records come again: %s", self._consumer, error)
        else:
            hand.confirmed()

    def _committed(self, records: int, began: float) -> None:
        self._stop.tell(BatchHandled(self._consumer, records, self._now() - began))

    def _deadline(self) -> Deadline:
        # Of what a stop leaves, some is kept for leaving the group.
        return Deadline(self._now() + min(COMMIT_BOUND, 0.8 * self._stop.remaining()))
