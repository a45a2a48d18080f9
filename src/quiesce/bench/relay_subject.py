"""The measured relay: a whole service with metrics, as a process of its own, with a `Job` on standard input.

It says when it is up and when the backlog has been moved; with no backlog to wait for it runs until SIGTERM.
Run as `python -m quiesce.bench.relay_subject`.
"""

import sys
import time
from pathlib import Path

from quiesce.bench.relay_bare import mark
from quiesce.bench.relay_gauge import Gauge
from quiesce.bench.relay_job import PRODUCER, Job
from quiesce.errors import SettingsError
from quiesce.kafka import KafkaPublisher
from quiesce.lifecycle.events import Event, PhaseChanged
from quiesce.lifecycle.phases import Phase
from quiesce.metrics import PrometheusMetrics
from quiesce.outbox.events import ClaimSettled, InFlightChanged
from quiesce.outbox.ports import OutboxStore
from quiesce.postgres import OutboxLog, OutboxRows, OutboxWakeups
from quiesce.relay import Relay
from quiesce.supervisor.decorator import service
from quiesce.supervisor.entry import run
from quiesce.supervisor.service import Service


class Counting:
    """Counts what was settled, and says when that is everything. An observer.

    As for the bare loops the clock begins with the first page that is settled: the start is a figure of its own.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._gauge = Gauge(Path(job.gauge)) if job.gauge else None
        self._moved = 0

    def observe(self, event: Event) -> None:
        if isinstance(event, PhaseChanged) and event.phase is Phase.RUNNING:
            mark("up")
        elif isinstance(event, ClaimSettled):
            before, self._moved = self._moved, self._moved + event.dispatched
            now = time.monotonic()
            if self._job.events:
                if not before and self._moved:
                    mark("first", events=self._moved)
                if before < self._job.events <= self._moved:
                    mark("moved", events=self._moved)
            if self._gauge is not None:
                self._gauge.settled(self._moved, now)
        elif isinstance(event, InFlightChanged) and self._gauge is not None:
            self._gauge.flying(event.events, event.limit)


def store_of(job: Job) -> OutboxStore:
    if job.store == "log":
        return OutboxLog(job.dsn, claims=job.pages)
    if job.store == "row":
        return OutboxRows(job.dsn, claims=job.pages)
    raise SettingsError(f"store: got {job.store!r}, takes log or row")


def main() -> int:
    job = Job.loads(sys.stdin.read())

    @service("bench-relay", observers=[PrometheusMetrics(), Counting(job)])
    async def bench_relay(s: Service) -> None:
        relay = Relay(
            store_of(job),
            KafkaPublisher(job.broker, settings=PRODUCER if job.events or job.bulk else {"linger.ms": 0}),
            batch=job.page,
            max_in_flight=job.page * job.pages,
            max_claims=job.pages,
        )
        s.run(relay)
        if job.listens:
            s.run(OutboxWakeups(job.dsn, relay.nudge))

    return run(bench_relay)


if __name__ == "__main__":
    sys.exit(main())
