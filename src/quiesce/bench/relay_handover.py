"""What a consumer notices when a relay goes: how long the latest events are under way, and which come twice."""

import asyncio
import signal
import threading
import time
from dataclasses import dataclass
from uuid import UUID

from quiesce.bench.processes import Measured
from quiesce.bench.relay_job import Job
from quiesce.bench.relay_latency import Arrivals, write
from quiesce.errors import StartError

RATE = 500.0
"""Transactions a second meanwhile, of one event each."""
_BEFORE, _AFTER = 2.0, 3.0
"""Seconds of load before the signal and behind it."""
_SUBJECT = "quiesce.bench.relay_subject"
_SETTLE = 1.5
"""Seconds for two relays to share the lanes out between them."""


@dataclass(frozen=True, slots=True)
class Handover:
    """`seconds`: the longest way from commit to consumer behind the signal. `doubled`: events that came twice."""

    seconds: float
    doubled: int
    events: int


def measure_handover(job: Job, partitions: int, number: signal.Signals) -> Handover:
    """Two relays under load, one of which gets the signal.

    Raises:
        StartError: events did not arrive, or a relay could not be started.
    """
    with Measured.module(_SUBJECT, job.dumps()) as leaving, Measured.module(_SUBJECT, job.dumps()) as staying:
        leaving.heard("up")
        staying.heard("up")
        time.sleep(_SETTLE)
        with Arrivals(job.broker, job.topic, partitions) as arrivals:
            written = _Writing(job, _BEFORE + _AFTER)
            time.sleep(_BEFORE)
            at = time.monotonic()
            leaving.end(number)
            committed = written.committed()
            arrivals.wait_for(committed)
            doubled = arrivals.doubled
        staying.end()
    ways = [arrivals.at[event] - when for event, when in committed.items() if arrivals.at[event] >= at]
    return Handover(max(ways, default=0.0), doubled, len(committed))


def measure_cold_start(job: Job, partitions: int) -> float:
    """Seconds from starting a relay's process to the first of the events that waited for it."""
    committed = asyncio.run(write(job, RATE, 0.2))
    with Arrivals(job.broker, job.topic, partitions) as arrivals:
        began = time.monotonic()
        with Measured.module(_SUBJECT, job.dumps()) as process:
            process.heard("up")
            arrivals.wait_for(committed)
            process.end()
    return min(arrivals.at[event] for event in committed) - began


class _Writing:
    """Commits events in a thread of its own."""

    def __init__(self, job: Job, seconds: float) -> None:
        self._job = job
        self._seconds = seconds
        self._written: dict[UUID, float] | None = None
        self._thread = threading.Thread(target=self._run, name="bench-writer", daemon=True)
        self._thread.start()

    def committed(self) -> dict[UUID, float]:
        """When each commit was over, once all are."""
        self._thread.join(self._seconds + 20)
        if self._written is None:
            raise StartError("the writer of the bench failed")
        return self._written

    def _run(self) -> None:
        self._written = asyncio.run(write(self._job, RATE, self._seconds))
