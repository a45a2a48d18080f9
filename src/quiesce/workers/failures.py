"""What becomes of records that were not handled: they wait, leave their place, or end the consumer. None is skipped
unless a policy says so."""

import asyncio
import hashlib
import logging
from collections.abc import Sequence
from dataclasses import replace

from quiesce.errors import BadRecord, RecordFailed
from quiesce.inbox import retry_headers
from quiesce.inbox.delivered import Trouble
from quiesce.inbox.events import HandlerFailed, RecordSkipped
from quiesce.inbox.piece import Handled, Held, Outage, Outcome, Piece, Place, Split, place_of
from quiesce.inbox.reason import Reason
from quiesce.inbox.record import Record
from quiesce.lifecycle.ports import Stop
from quiesce.workers.asides import Asides
from quiesce.workers.bad_input import MADE_HERE, Bad
from quiesce.workers.probe import Probes
from quiesce.workers.raised import legible, raised
from quiesce.workers.retries import TIMEOUTS, Verdict
from quiesce.workers.standstill import Standstill
from quiesce.workers.starts import Starts
from quiesce.workers.terms import Terms

log = logging.getLogger("quiesce.workers")


class HandlerTooLong(TimeoutError):
    """The handler was cancelled at its bound. `worked`: how much had been handled when it began."""

    def __init__(self, told: str, worked: int) -> None:
        super().__init__(told)
        self.worked = worked


class Failures:
    """Those of one run of a consumer."""

    def __init__(self, terms: Terms, stop: Stop, starts: Starts) -> None:
        self.standstill = Standstill(terms.name, "reach what the handler needs")
        self.asides = Asides(terms, stop)
        self._probes = Probes(terms.probe, starts)
        self._terms = terms
        self._stop = stop
        self._now = asyncio.get_running_loop().time

    async def bad(self, piece: Piece, bad: Sequence[Bad]) -> Outcome | None:
        """Settles those that no handler can take. An outcome if one of them has to wait."""
        until: dict[Place, float] = {}
        for one in bad:
            one = replace(one, error=legible(one.error))
            if self._terms.retries.judge(one.error) is Verdict.OUTAGE:
                return Outage(self._now() + self.standstill.failed(one.error))
            held = await self._bad_one(piece, one)
            if held is not None:
                until[place_of(one.record)] = held
        return Held(until) if until else None

    async def _bad_one(self, piece: Piece, bad: Bad) -> float | None:
        """Does with it what the policy says. Returns until when it has to wait; None if it is done with."""
        name, record = self._terms.name, bad.record
        policy = self._terms.bad_input.policy(bad.code, dead_letters=self._terms.dead_letters is not None)
        why = Reason.of_error(bad.error, retry_headers.tries(self._terms.believed(record)), name, bad.code)
        trouble = trouble_for(piece, record)
        told = raised(bad.error, made_here=bad.code in MADE_HERE)
        if trouble.failures == 0 or policy == "stop":
            log.error("%s: bad input (%s), %s: %s: %s", name, bad.code, policy, record, told)
            log.debug("%s: %s", name, record, exc_info=bad.error)
        if policy == "stop":
            raise BadRecord(
                f"{name}: {record}: {bad.code}: {told}. Set it aside (dead_letters=), skip it, or mend the handler"
            ) from bad.error
        if policy == "skip":
            piece.settled.add(place_of(record))
            self._stop.tell(RecordSkipped(name, record.topic, bad.code))
            return None
        if policy == "hold":
            trouble.failures += 1
            return self._now() + self._terms.retries.backoff.ceiling
        return await self.asides.set_aside(piece, record, trouble, why)

    async def failed(self, piece: Piece, good: Sequence[Record], error: Exception) -> Outcome:
        retries = self._terms.retries
        named = error.record if isinstance(error, RecordFailed) else None
        cause = error
        if isinstance(error, RecordFailed) and isinstance(error.__cause__, Exception):
            cause = error.__cause__
        cause = legible(cause)
        record: Record | None = None
        if len(good) == 1:
            record = good[0]
        elif isinstance(named, Record) and any(place_of(one) == place_of(named) for one in good):
            record = named
        verdict = retries.judge(cause)
        if verdict is Verdict.OUTAGE:
            first = record or good[0]
            at_bound = isinstance(cause, HandlerTooLong)
            doubtful = at_bound or retries.is_doubtful(cause)
            if not doubtful or await self._is_outage(piece, first, cause, alone=record is not None):
                # Of one that was cancelled at its bound the others shall show whose fault it was.
                return self._outage(piece, first, cause, named=record is not None and (len(good) > 1 or at_bound))
            verdict = Verdict.AGAIN
        if record is None:
            self._stop.tell(HandlerFailed(self._terms.name, good[0].topic, type(cause).__name__, False))
            told = "%s: %s failed together, begun again in smaller pieces: %s"
            log.warning(told, self._terms.name, piece, raised(cause))
            log.debug("%s: %s", self._terms.name, piece, exc_info=cause)
            return Split()
        code = getattr(cause, "reason_code", None)
        if isinstance(code, str):
            held = await self._bad_one(piece, Bad(record, code, cause))
        else:
            held = await self._try_failed(piece, record, cause, verdict)
        if held is not None:
            return Held({place_of(record): held})
        return Handled() if len(good) == 1 else Held({})

    async def _is_outage(self, piece: Piece, first: Record, cause: Exception, *, alone: bool) -> bool:
        """Whether what tells nobody whose fault it was, a bare `TimeoutError` or the handler's bound, is taken for an
        outage once more. `alone`: it is known whose call it was."""
        there = await self._probes.there()
        if there is False:
            return True
        trouble, at_bound = trouble_for(piece, first), isinstance(cause, HandlerTooLong)
        if not alone and (there or at_bound):
            # Split, it costs no record an attempt, and those that do work show that the servers are there.
            return False
        trouble.timeouts += 1
        if there:
            # The first time the outage may have been over just before it was asked.
            return trouble.timeouts == 1
        if isinstance(cause, HandlerTooLong):
            if trouble.worked is None:
                trouble.worked = self.standstill.worked
            elif cause.worked > trouble.worked:
                # Others were handled between its first cancel and the begin of this call.
                return False
        if alone and self.standstill.elsewhere(place_of(first)):
            # One that took so long tells nothing that the others did not.
            trouble.timeouts -= at_bound
            return True
        if alone:
            self.standstill.doubted(place_of(first))
        return trouble.timeouts <= TIMEOUTS and (at_bound or not _is_narrowed(piece))

    def _outage(self, piece: Piece, first: Record, cause: Exception, *, named: bool) -> Outcome:
        """It waits, and no attempt is counted. Where the record is `named`, its key waits, and no other."""
        trouble = trouble_for(piece, first)
        trouble.failures += 1
        self.standstill.failed(cause, place_of(first))
        self._stop.tell(HandlerFailed(self._terms.name, first.topic, type(cause).__name__, True))
        until = self._now() + self._terms.retries.backoff.wait(trouble.failures)
        return Held({place_of(first): until}) if named else Outage(until)

    async def _try_failed(self, piece: Piece, record: Record, error: Exception, verdict: Verdict) -> float | None:
        """One attempt at a record failed. Returns until when it waits; None if it is done with here."""
        terms = self._terms
        trouble = trouble_for(piece, record)
        trouble.tries += 1
        trouble.failures += 1
        tries = trouble.tries + retry_headers.tries(terms.believed(record))
        never = verdict is Verdict.NEVER or isinstance(error, terms.retries.never)
        over = never or terms.retries.spent(tries)
        self._stop.tell(HandlerFailed(terms.name, record.topic, type(error).__name__, False))
        log.error(
            "%s: the handler failed on %s (key %s, try %d): %s: %s",
            terms.name,
            record,
            key_digest(record),
            tries,
            self.asides.what_now(over=over, never=never),
            raised(error),
        )
        # Text and traceback may hold what was in the record.
        log.debug("%s: %s", terms.name, record, exc_info=error)
        why = Reason.of_error(error, tries, terms.name)
        if over and terms.dead_letters is not None:
            return await self.asides.set_aside(piece, record, trouble, why)
        wait = terms.retries.backoff.wait(trouble.failures)
        if not over and terms.retry_topic is not None:
            return await self.asides.postpone(piece, record, trouble, why, wait)
        return self._now() + wait

    async def give_up(self, piece: Piece, record: Record, trouble: Trouble, why: Reason) -> Outcome:
        if self._terms.dead_letters is None:
            trouble.failures += 1
            return Held({place_of(record): self._now() + self._terms.retries.backoff.ceiling})
        held = await self.asides.set_aside(piece, record, trouble, why)
        return Handled() if held is None else Held({place_of(record): held})


def trouble_for(piece: Piece, record: Record) -> Trouble:
    part = next(part for part, _ in piece.parts if part.source == record.source)
    return part.troubles.setdefault(record.offset, Trouble())


def _is_narrowed(piece: Piece) -> bool:
    """Whether it is a smaller piece of a batch that failed."""
    return piece.of_key is None and len(piece.parts) == 1 and piece.parts[0][0].most_at_once is not None


def key_digest(record: Record) -> str:
    """What tells one key from another without showing it: keys may be personal data."""
    return "none" if record.key is None else hashlib.sha256(record.key).hexdigest()[:8]
