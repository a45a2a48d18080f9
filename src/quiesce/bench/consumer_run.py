"""One whole run of `quiesce bench consumer`: the same records, read in turns by bare loops and by our consumer."""

import contextlib
import statistics
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from quiesce.bench.consumer_job import Job
from quiesce.bench.consumer_topic import PARTITIONS, filled
from quiesce.bench.cores import Shares
from quiesce.bench.figures import Figure
from quiesce.bench.processes import Measured
from quiesce.bench.relay_measures import Move, together
from quiesce.bench.servers import Servers, servers
from quiesce.errors import StartError
from quiesce.inbox.schema_steps import INBOX
from quiesce.kafka.consumer_settings import FETCH_AGAIN

RATIO, INBOX_RATIO = 0.6, 0.7
"""Of the bare loop's records a second, and of those of the same handler without an inbox, at least."""

DURABLE = {"fsync": "on", "full_page_writes": "on"}
"""An inbox is for data that must not be lost, so commits are those of a server that is in earnest."""

_BOUND = 300.0
"""Seconds for all records once. Far above what is measured."""

_EFFECT = """
CREATE TABLE bench_effect (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, key text NOT NULL, number bigint, value bytea
);
CREATE INDEX ON bench_effect (key);
"""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is measured.

    Args:
        postgres: the DSN of a server that is there; empty to start one.
        rows: records that are read where a database is written to, which is slower.
        rounds: how often each is run; the median counts.
    """

    broker: str = "kafka"
    postgres: str = ""
    records: int = 500_000
    rows: int = 200_000
    keys: int = 1_000
    payload: int = 200
    page: int = 500
    rounds: int = 3


@dataclass(frozen=True, slots=True)
class Outcome:
    """Every run of each, by what was run."""

    runs: Mapping[str, list[Move]]

    def median(self, which: str) -> float:
        return statistics.median(run.per_second for run in self.runs[which])

    def cpu(self, which: str) -> dict[str, float]:
        """Microseconds a record, of each process. They say what a figure of time from a busy machine cannot."""

        runs = self.runs[which]
        told = {"consumer": statistics.median(run.cpu_us for run in runs)}
        for server in runs[0].cores.parts.keys() - {"consumer"}:
            told[server] = statistics.median(1e6 * run.cores.parts[server] / run.per_second for run in runs)
        return {part: round(used, 2) for part, used in told.items()}

    @property
    def figures(self) -> list[Figure]:
        def rate(key: str, says: str, which: str) -> Figure:
            samples = tuple(run.per_second for run in self.runs[which])
            return Figure(key, says, self.median(which), "/s", samples=samples)

        ratio = self.median("nothing") / self.median("bare")
        tuned_ratio = self.median("nothing") / self.median("tuned")
        inbox_ratio = self.median("inbox") / self.median("rows")
        return [
            rate("bare_records_per_second", "a bare consume loop", "bare"),
            rate("tuned_records_per_second", "the same that never waits a second to fetch", "tuned"),
            rate("records_per_second", "our consumer, in batches", "nothing"),
            Figure("ratio", "beside the bare loop", ratio, "", RATIO, at_least=True),
            Figure("tuned_ratio", "beside the one that never waits", tuned_ratio, ""),
            rate("rows_records_per_second", "our consumer, writing a row a record", "rows"),
            rate("inbox_records_per_second", "the same with an inbox", "inbox"),
            Figure("inbox_ratio", "beside the same without", inbox_ratio, "", INBOX_RATIO, at_least=True),
        ]

    @property
    def passed(self) -> bool:
        return all(figure.passed is not False for figure in self.figures)

    @property
    def cores(self) -> Shares:
        return together([run for runs in self.runs.values() for run in runs])

    def as_json(self) -> dict[str, Any]:
        """One object whose first keys are the figures."""
        flat = {one.key: round(one.value, 3 if one.key.endswith("ratio") else None) for one in self.figures}
        return {
            **flat,
            "cpu_us_per_record": {which: self.cpu(which) for which in self.runs},
            "runs": {which: [round(run.per_second) for run in runs] for which, runs in self.runs.items()},
            "targets": {"ratio": RATIO, "inbox_ratio": INBOX_RATIO},
            "passed": self.passed,
            "load": self.cores.as_json(),
        }


def measure(plan: Plan, say: Say) -> Outcome:
    """Each in turns, with a group of its own that begins at the first record.

    Raises:
        StartError: a server could not be started, or a measured process failed.
    """
    runs: dict[str, list[Move]] = {which: [] for which in _SAID}
    say("PostgreSQL and the broker start")
    with contextlib.ExitStack() as stack:
        started = stack.enter_context(servers(plan.broker, DURABLE, plan.postgres))
        # Two topics, so that nobody fetches more than is counted.
        sizes = {which: plan.rows if which in ("rows", "inbox") else plan.records for which in runs}
        topics = {
            records: stack.enter_context(filled(started.bootstrap, records, plan.keys, plan.payload))
            for records in sorted(set(sizes.values()))
        }
        told = " and ".join(f"{records:,}" for records in topics)
        say(f"{told} records of {plan.payload} bytes lie in {PARTITIONS} partitions")
        for number in range(plan.rounds):
            for which in runs if number % 2 == 0 else reversed(runs):
                records = sizes[which]
                job = Job(started.bootstrap, topics[records], _name(), records, plan.page)
                runs[which].append(_run(started, which, job))
                say(f"round {number + 1} of {plan.rounds}: {_SAID[which]}, {runs[which][-1].per_second:,.0f}/s")
    return Outcome(runs)


_SAID = {
    "bare": "the bare loop",
    "tuned": "the bare loop that never waits a second to fetch",
    "nothing": "our consumer",
    "rows": "our consumer, writing a row a record",
    "inbox": "the same with an inbox",
}


@contextlib.contextmanager
def _database(started: Servers, wanted: bool) -> Iterator[str]:
    """The DSN of a new database with the inbox's tables and one for the effect; none where none is wanted."""
    if not wanted:
        yield ""
        return
    name = _name()
    dsn = started.database.create_database(name)
    try:
        started.database.execute(f"{INBOX.show()};{_EFFECT}", name)
        yield dsn
    finally:
        started.database.drop_database(name)


def _run(started: Servers, which: str, job: Job) -> Move:
    """From the first batch that is handled to the last."""
    bare = which in ("bare", "tuned")
    module = f"quiesce.bench.consumer_{'bare' if bare else 'subject'}"
    with _database(started, which in ("rows", "inbox")) as dsn:
        job = replace(job, handler="nothing" if bare else which, dsn=dsn)
        if which == "tuned":
            job = replace(job, fetch_again=FETCH_AGAIN)
        with Measured.module(module, job.dumps()) as process:
            process.heard("up")
            cores = started.cores(consumer=process.pid)
            first = process.heard("first", _BOUND)
            handled = process.heard("handled", _BOUND)
            used = cores.used()
            end = process.over() if bare else process.end()
            if end.status != 0:
                raise StartError(f"the measured process {module} ended with status {end.status}")
    count = handled["records"] - first["records"]
    seconds = handled["at"] - first["at"]
    return Move(count / seconds, 1e6 * (handled["cpu"] - first["cpu"]) / count, used)


def _name() -> str:
    return f"bench-{uuid.uuid4().hex[:8]}"
