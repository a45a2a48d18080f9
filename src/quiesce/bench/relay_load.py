"""Load at a rate: events committed at instants laid out beforehand, whatever the ones before took."""

import asyncio
import threading
import time
from array import array
from collections.abc import Callable
from contextlib import AsyncExitStack
from uuid import uuid4

from quiesce.bench.relay_job import Job
from quiesce.errors import StartError
from quiesce.outbox.event import OutboxEvent
from quiesce.postgres import connect, enqueue_many
from quiesce.postgres.driver import Connection

_KEYS = 100
_PAYLOAD = 200
_A_CONNECTION = 150.0
"""Transactions a second that one connection is trusted with."""
_END_BOUND = 60.0


class Timings:
    """When each of the numbered events was committed, and when it came. Monotonic seconds, 0 where it was not yet.

    The events of one of them are told from all others by the mark in their payload. One thread writes what was
    committed and another what came, so no lock is needed.
    """

    def __init__(self, events: int) -> None:
        self._mark = uuid4().hex[:8]
        self._begins = self._mark.encode() + b" "
        self.committed = array("d", bytes(8 * events))
        self.came = array("d", bytes(8 * events))
        self.commits = 0
        self.arrivals = 0
        self.doubled = 0
        """Messages whose event had come before."""

    def payload(self, number: int) -> bytes:
        """What event `number` carries."""
        return f"{self._mark} {number} ".encode().ljust(_PAYLOAD, b"x")

    def event(self, topic: str, number: int) -> OutboxEvent:
        return OutboxEvent(topic, f"key-{number % _KEYS}", "OrderPlaced", self.payload(number))

    def was_committed(self, number: int, at: float) -> None:
        self.committed[number] = at
        self.commits += 1

    def arrived(self, payload: bytes, at: float) -> None:
        """A message with this payload came; others' are left out."""
        if not payload.startswith(self._begins):
            return
        number = int(payload.split(b" ", 2)[1])
        if self.came[number]:
            self.doubled += 1
        else:
            self.came[number] = at
            self.arrivals += 1

    @property
    def missing(self) -> int:
        """Committed and not yet come; below 0 for a moment while an event is faster than its writer is told."""
        return self.commits - self.arrivals

    def ways(self, since: float, until: float = float("inf")) -> list[float]:
        """Milliseconds from the return of COMMIT to the consumer, of what was committed between two instants."""
        return [
            1000 * (came - committed)
            for committed, came in zip(self.committed, self.came, strict=True)
            if since <= committed < until and came
        ]


class Load:
    """Commits at a rate: `rate` transactions a second for `seconds`, of `each` events.

    Args:
        job: the database and the topic.
        wake: called behind each commit.
    """

    def __init__(
        self, job: Job, rate: float, seconds: float, *, each: int = 1, wake: Callable[[], object] | None = None
    ) -> None:
        self._job = job
        self._rate = rate
        self._transactions = max(1, round(rate * seconds))
        self._each = each
        self.wake = wake
        self.timings = Timings(self._transactions * each)
        self.took = array("d", bytes(8 * self._transactions))
        """Seconds that each COMMIT took."""
        self.began = self.ended = 0.0
        self.over = threading.Event()
        """Set when what runs in the background has ended, well or not."""
        self.stopped = threading.Event()
        """Whoever sets it has no more transactions begun."""

    @property
    def per_second(self) -> float:
        """Events a second that were committed: fewer than asked for where the server cannot keep up."""
        return self._transactions * self._each / max(self.ended - self.began, 1e-9)

    async def run(self) -> None:
        """Until the last one is committed. A broken connection ends it."""
        width = max(1, round(self._rate / _A_CONNECTION))
        async with AsyncExitStack() as stack:
            writers = [await stack.enter_async_context(connect(self._job.dsn, name="bench")) for _ in range(width)]
            self.began = time.monotonic()
            await asyncio.gather(*(self._write(one, number, width) for number, one in enumerate(writers)))
        self.ended = time.monotonic()

    async def _write(self, connection: Connection, first: int, step: int) -> None:
        for transaction in range(first, self._transactions, step):
            await asyncio.sleep(max(0.0, self.began + transaction / self._rate - time.monotonic()))
            if self.stopped.is_set():
                return
            numbers = range(transaction * self._each, (transaction + 1) * self._each)
            events = [self.timings.event(self._job.topic, number) for number in numbers]
            opened = connection.transaction()
            await opened.start()
            await enqueue_many(connection, events)
            before = time.monotonic()
            await opened.commit()
            now = time.monotonic()
            self.took[transaction] = now - before
            for number in numbers:
                self.timings.was_committed(number, now)
            if self.wake is not None:
                self.wake()

    def in_background(self) -> Callable[[], None]:
        """Begins it in a thread of its own; what is returned waits for its end.

        Raises:
            StartError: from what is returned: it failed, or took a minute and twice as long as it should.
        """
        failed: list[BaseException] = []

        def work() -> None:
            try:
                asyncio.run(self.run())
            except Exception as error:  # noqa: BLE001 - whoever waits raises it
                failed.append(error)
            finally:
                self.over.set()

        thread = threading.Thread(target=work, name="bench-writer", daemon=True)
        thread.start()

        def wait() -> None:
            thread.join(2 * self._transactions / self._rate + _END_BOUND)
            if failed:
                raise StartError(f"the writer of the bench failed: {failed[0]}") from failed[0]
            if thread.is_alive():
                raise StartError("the writer of the bench did not end")

        return wait
