"""A worker that handles records in batches and commits only what it has handled."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from quiesce.errors import Unavailable
from quiesce.inbox.ports import Source
from quiesce.inbox.record import Batch, Record
from quiesce.lifecycle.backoff import Backoff
from quiesce.lifecycle.deadline import Deadline
from quiesce.lifecycle.ports import OnDrain, Resource, Stop
from quiesce.workers.arguments import After, check_count, check_terms, worker_name
from quiesce.workers.commits import Commits
from quiesce.workers.in_hand import InHand
from quiesce.workers.iteration import iterate, unless_aborted

log = logging.getLogger("quiesce.workers")

LEAVE_BOUND = 5.0
"""Seconds to leave the group in, when the drain has that much left."""

PUT_DOWN_BOUND = 1.0
"""Seconds that an idle fetch has to end in once it is cancelled."""


class Consumer:
    """Fetches a batch, handles its records in order, commits their offsets, and again.

    An iteration is one try at one batch. An idle fetch is none: a stop ends it at once. After a stop
    nothing more is fetched; the batch in hand is handled to its end and committed, then the group is left.
    If the time will not do, it begins no further record while there is still time to commit those that are
    handled; the others come again.

    A handler that raises is logged. What was handled before it is committed; then the batch goes on from
    the same record after a wait with backoff, for as long as it takes: no record is skipped. A stop ends
    the wait. An abort is not an outcome: the record in hand is not committed and comes again.

    While brokers do not answer it holds what it has and waits.

    Args:
        source: the member of the group. The consumer brings it as a resource.
        handler: a coroutine function, called with the record and `args`. It may see a record twice.
        name: for logs, metrics and the report; the source's own by default.
        batch: how many records one fetch may bring.
        bound: seconds it may take once it is told to stop; the budget's `workers` by default.
        on_drain: "cancel" has it cancelled as soon as a stop is requested, in the middle of a record.
        after: "http" has it told to stop after the HTTP drain.
        backoff: the waits between two tries at one record.

    Raises:
        SettingsError: an argument is wrong.
    """

    def __init__(
        self,
        source: Source,
        handler: Callable[..., Awaitable[object]],
        *args: Any,
        name: str | None = None,
        batch: int = 100,
        bound: float | None = None,
        on_drain: OnDrain = "finish",
        after: After = None,
        backoff: Backoff | None = None,
    ) -> None:
        self.name = name or source.name or worker_name(None, handler)
        check_terms(self.name, bound, on_drain, after)
        check_count(self.name, "batch", batch)
        self.bound = bound
        self.on_drain = on_drain
        self.after = after
        self.source = source
        self.batch = batch
        self.backoff = backoff if backoff is not None else Backoff(first=0.5, ceiling=30.0)
        self._handler = handler
        self._args = args

    @property
    def resources(self) -> Sequence[Resource[object]]:
        return (self.source,)

    async def run(self, stop: Stop) -> None:
        await _Consuming(self, stop).run()

    async def handle(self, record: Record) -> None:
        await self._handler(record, *self._args)


class _HandlerFailed(Exception):
    """Carries the record that its cause belongs to."""

    def __init__(self, record: Record) -> None:
        super().__init__(str(record))
        self.record = record


class _Consuming:
    """One run of a consumer: the batch in hand, and the waits around it."""

    def __init__(self, consumer: Consumer, stop: Stop) -> None:
        self._consumer = consumer
        self._source = consumer.source
        self._name = consumer.name
        self._stop = stop
        self._now = asyncio.get_running_loop().time
        self._commits = Commits(consumer.name, consumer.source, stop)
        self._hand: InHand | None = None
        self._failures = 0
        self._fetch_failures = 0

    async def run(self) -> None:
        try:
            await iterate(self._stop, self._name, ready=self._next_batch, once=self._batch, failed=self._batch_failed)
            if self._hand is not None and self._hand.unconfirmed:
                self._stop.abandon("handled records without a commit", self._hand.unconfirmed)
            self._put_away()
            await self._leave()
        except asyncio.CancelledError:
            await self._abort()
            raise

    async def _next_batch(self) -> InHand | None:
        """The batch in hand once its wait is over, or a new one. None after a stop."""
        if self._hand is not None:
            if not await self._stop.sleep(self._consumer.backoff.wait(self._failures)):
                return None
            await self._commits.sift(self._hand, self._now())
            self._put_away_if_over(self._hand)
        while self._hand is None and not self._stop.requested:
            batch = await self._fetch()
            if batch:
                self._hand, self._failures = InHand(batch), 0
        return self._hand

    async def _batch(self, hand: InHand) -> None:
        began = self._now()
        failure = await self._handle(hand)
        await self._commits.make(hand, began)
        self._put_away_if_over(hand)
        if failure is not None:
            raise failure

    async def _handle(self, hand: InHand) -> _HandlerFailed | None:
        """Handles what is left, up to the first failure or until there is just time left to commit."""
        while hand.left:
            record = hand.left[0]
            if self._commits.last_call():
                log.warning("%s: %d records are left for after the stop", self._name, len(hand.left))
                return None
            try:
                await unless_aborted(self._consumer.handle(record))
            except Exception as error:  # noqa: BLE001 - logged by `_batch_failed`, which gets it
                failure = _HandlerFailed(record)
                failure.__cause__ = error
                return failure
            hand.handled()
            self._failures = 0
        return None

    def _batch_failed(self, error: Exception) -> None:
        if not isinstance(error, _HandlerFailed):
            raise error
        self._failures += 1
        log.error(
            "%s: the handler failed on %s (try %d); no record is skipped",
            self._name,
            error.record,
            self._failures,
            exc_info=error.__cause__,
        )

    def _put_away_if_over(self, hand: InHand) -> None:
        if not hand.left and not hand.uncommitted:
            self._put_away()

    def _put_away(self) -> None:
        """Nothing is in hand any more: a revoke need not wait for us."""
        if self._hand is not None:
            hand, self._hand = self._hand, None
            self._source.done(hand.assignment)

    async def _fetch(self) -> Batch | None:
        """A batch, or None when a stop came first, or when there is none yet."""
        fetching = asyncio.ensure_future(self._source.fetch(self._consumer.batch))
        stopped = asyncio.ensure_future(self._stop.wait())
        taken = False
        try:
            # Not bounded: a fetch comes back within a second by contract, and a stop ends the wait.
            await asyncio.wait((fetching, stopped), return_when=asyncio.FIRST_COMPLETED)
            if not fetching.done():
                return None
            taken = True
            batch = fetching.result()
        except Unavailable as error:
            await self._wait_for_brokers(error)
            return None
        finally:
            await self._put_down(fetching, stopped, taken)
        if self._fetch_failures:
            log.info("%s: the brokers answer again", self._name)
            self._fetch_failures = 0
        return batch

    async def _wait_for_brokers(self, error: Unavailable) -> None:
        self._fetch_failures += 1
        if self._fetch_failures == 1:
            # Once an outage: a line per try would bury everything else.
            log.warning("%s: cannot fetch, trying again until it works: %s", self._name, error)
        await self._stop.sleep(Backoff(first=0.1, ceiling=5.0).wait(self._fetch_failures))

    async def _put_down(self, fetching: asyncio.Future[Batch], stopped: asyncio.Future[None], taken: bool) -> None:
        """Ends what still waits, and hands back a batch that nobody took."""
        waiting = {future for future in (fetching, stopped) if not future.done()}
        for future in waiting:
            future.cancel()
        if waiting:
            _, hanging = await asyncio.wait(waiting, timeout=PUT_DOWN_BOUND)
            if hanging:
                log.warning("%s: a cancelled fetch did not end in %g s", self._name, PUT_DOWN_BOUND)
        if not taken and fetching.done() and not fetching.cancelled() and fetching.exception() is None:
            batch = fetching.result()
            if batch:
                self._source.done(batch.assignment)

    async def _leave(self) -> None:
        """Leaves the group while the drain lasts, so that the others get the partitions at once."""
        bound = min(LEAVE_BOUND, self._stop.remaining())
        try:
            await self._source.close(Deadline(self._now() + bound))
        except Exception:
            # Not the worker's failure: the service closes the source once more in its own part.
            log.exception("%s: could not leave the group", self._name)

    async def _abort(self) -> None:
        if self._hand is None:
            return
        await self._commits.save(self._hand)
        if self._consumer.on_drain != "cancel":
            left = len(self._hand.left) + self._hand.unconfirmed
            self._stop.abandon("records of the batch in hand", left)
        self._put_away()
