"""One claim in flight: handed over, answered, settled. Its order of steps is what the outbox promises."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack
from uuid import UUID

from quiesce.errors import ClaimLost, PublisherDiscarded, Unavailable
from quiesce.lifecycle.crash_points import reach
from quiesce.outbox.answers import all_dispatched, seconds_of
from quiesce.outbox.event import ClaimedEvent
from quiesce.outbox.events import ClaimSettled
from quiesce.outbox.outcome import Outcome
from quiesce.outbox.ports import Claim, GrowingClaim
from quiesce.relay import points
from quiesce.relay.control import Control
from quiesce.relay.held_keys import first_places
from quiesce.relay.verdicts import Verdicts, judge
from quiesce.relay.waits import aborted

log = logging.getLogger("quiesce.relay")


class Flight:
    """A claim from the moment it is made until it is settled or released.

    Whatever happens, each claimed event is either published and settled, or freed. Nothing is freed while a message of
    the claim may still reach the broker: if an answer is missing, it waits until the producer has been discarded.
    """

    def __init__(
        self, claim: Claim, iteration: ExitStack, claimed_at: float, control: Control, growing: GrowingClaim | None
    ) -> None:
        """`growing`: the claim once more, if it can take in others."""
        self.claim = claim
        self.size = len(claim.events)
        self.unanswered = 0
        """Events handed over that the broker has not answered for."""
        self.waiting_since: float | None = None
        """When it was handed over, while answers are missing."""
        self._growing = growing
        self._handed_over = 0
        self._handed_over_at = 0.0
        self._iteration = iteration
        self._claimed_at = claimed_at
        self._control = control
        self._failure: Exception | None = None
        self._over = False

    async def carry(self) -> None:
        """Takes the claim to its end. Raises nothing but a cancel: what went wrong is told."""
        try:
            with self._iteration:
                try:
                    await self._carry()
                finally:
                    if not self._over:
                        await self.free(self._control.free_bound())
        except Exception as error:  # noqa: BLE001 - the loop that waits for us logs it
            if error is not self._failure:
                self._control.failed(error)

    def grow(self, later: GrowingClaim) -> bool:
        """Takes along what was claimed right behind it, while it waits for answers. Whether it could."""
        growing, adds = self._growing, self._control.adds
        if growing is None or adds is None or self.waiting_since is None:
            return False
        events = growing.events
        try:
            takes = adds.takes(events, later.events)
        except Exception as error:  # noqa: BLE001 - the loop logs it; `later` gets a flight, which gives it back
            self._control.failed(error)
            return False
        if not takes:
            return False
        known = len(events)
        growing.absorb(later)
        reach(points.CLAIMED)
        self.size = len(events)
        self.unanswered += self.size - known
        # Told before any of it can reach the broker: what is told to be in flight is what a crash may double.
        self._control.claimed_more()
        adds.add(events, known)
        return True

    async def _carry(self) -> None:
        reach(points.CLAIMED)
        if not self._control.may_hand_over():
            # A stop, or an answer that went missing, came between the claim and the hand-over.
            await self.free(self._control.settings.store_bound)
            return
        held = self._control.held
        events: Sequence[ClaimedEvent] = self.claim.events
        left_out: Sequence[ClaimedEvent] = ()
        if held.any:
            left_out = [event for event in events if held.holds(event)]
            events = [event for event in events if not held.holds(event)]
        # What is left out holds its key in turn, until this claim has given it back.
        places = first_places(left_out)
        held.refused(places)
        try:
            await self._hand_over(events)
        finally:
            held.recorded(places)
        if self._failure is not None:
            raise self._failure

    async def _hand_over(self, events: Sequence[ClaimedEvent]) -> None:
        answers = await self._publish(events)
        settings = self._control.settings
        verdicts = judge(events, answers, settings.retry, settings.dead_holds_key)
        # By the first of those that it began with: what it took along later was answered later.
        began, published = self._handed_over_at, seconds_of(answers)
        if published is None:
            published = self._control.now() - began
        if verdicts.dispatched and not verdicts.unanswered:
            self._control.measured(min(verdicts.dispatched, self._handed_over), began, began + published)
        if refused := len(events) - verdicts.dispatched - verdicts.unanswered:
            # The broker has none of these, so a crash doubles none.
            self.size -= refused
            self._control.refused(refused, of=len(events))
        if events and not verdicts.unanswered:
            reach(points.PUBLISHED)
        self._control.held.refused(verdicts.refused)
        try:
            await self._settle(verdicts, published, began + published)
        finally:
            self._control.held.recorded(verdicts.refused)

    async def _publish(self, events: Sequence[ClaimedEvent]) -> Mapping[UUID, Outcome]:
        """Hands over and waits for the answers: those there are once there will be no more."""
        if not events:
            return {}
        answers: Mapping[UUID, Outcome] = {}
        self.unanswered = self._handed_over = len(events)
        self.waiting_since = self._handed_over_at = self._control.now()
        try:
            # Not bounded here: the loop watches all flights together and discards the producer.
            answers = await self._control.publisher.publish(events)
        except (PublisherDiscarded, Unavailable) as error:
            log.debug("publish ended without answers: %s", error)
        except asyncio.CancelledError as error:
            if aborted():
                raise
            self._fail(RuntimeError("publish was cancelled from inside"), error)
        except Exception as error:  # noqa: BLE001 - the loop logs it; raised here once the claim is at its end
            self._fail(error)
        self.unanswered = _unanswered(events, answers)
        self.waiting_since = None
        if self.unanswered < len(events):
            self._control.answered()
        if self.unanswered:
            await self._control.until_discarded()
            # Until then answers may have come.
            self.unanswered = _unanswered(events, answers)
        return answers

    def _fail(self, failure: Exception, cause: BaseException | None = None) -> None:
        """Tells the loop at once, since it has to discard the producer before this claim can end."""
        failure.__cause__ = cause if cause is not None else failure.__cause__
        self._failure = failure
        self._control.failed(failure)

    async def _settle(self, verdicts: Verdicts, publish_seconds: float, answered_at: float) -> None:
        if not verdicts.outcomes:
            await self.free(self._control.settings.store_bound)
            return
        self._over = True
        try:
            async with asyncio.timeout(self._control.settings.store_bound):
                settled = await self.claim.settle(verdicts.outcomes)
        except asyncio.CancelledError as error:
            self._control.unmarked(verdicts.dispatched, "it was aborted")
            if aborted():
                raise
            raise RuntimeError("settle was cancelled from inside") from error
        except (ClaimLost, Unavailable, TimeoutError) as error:
            self._control.unmarked(verdicts.dispatched, str(error) or "the database did not answer in time")
            return
        except Exception:
            self._control.unmarked(verdicts.dispatched, "of an unexpected error")
            raise
        reach(points.SETTLED)
        now = self._control.now()
        self._control.settled(
            ClaimSettled(
                relay=self._control.settings.name,
                dispatched=settled.dispatched,
                retried=settled.retried,
                dead=settled.dead,
                released=settled.released,
                refused=verdicts.reasons,
                publish_seconds=publish_seconds,
                seconds=now - self._claimed_at,
                waited_seconds=None if settled.waited is None else max(0.0, settled.waited - (now - answered_at)),
            ),
            verdicts.letters,
        )

    async def free(self, bound: float) -> None:
        """Ends the claim; every event is free again, unchanged."""
        self._over = True
        await release(self.claim, asyncio.timeout(bound))


def _unanswered(events: Sequence[ClaimedEvent], answers: Mapping[UUID, Outcome]) -> int:
    return 0 if all_dispatched(answers, events) else sum(event.id not in answers for event in events)


async def release(claim: Claim, bound: AbstractAsyncContextManager[object]) -> None:
    """Releases a claim inside a bound. A database that hangs frees it when the connection ends."""
    try:
        async with bound:
            await claim.release()
    except TimeoutError:
        log.warning("a claim could not be released in time; it ends with its connection")
