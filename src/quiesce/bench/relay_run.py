"""One whole run of `quiesce bench relay`: servers, backlog, both stores, latency."""

import contextlib
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from quiesce.bench.figures import Machine
from quiesce.bench.relay_job import Job
from quiesce.bench.relay_latency import Latency, measure_latency
from quiesce.bench.relay_measures import Throughput, measure_throughput
from quiesce.bench.relay_peers import measure_peer
from quiesce.bench.relay_rates import SERVER, NotMeasured, PeerFigure
from quiesce.bench.relay_tables import Tables
from quiesce.errors import StartError
from quiesce.testing.kafka import LocalKafka
from quiesce.testing.kafka_address import KafkaAddress
from quiesce.testing.postgres import LocalPostgres
from quiesce.testing.tansu import LocalTansu

PARTITIONS = 6
LATENCY_RATE = 200.0
"""Transactions a second, of one event each."""
P50_TARGET, P99_TARGET = 2.0, 5.0
"""Milliseconds from commit to consumer."""
BUSY_TARGET, IDLE_TARGET = 0.15, 0.01
"""Shares of one core that the relay may use meanwhile, and when nothing comes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is measured.

    Args:
        row_events: fewer, since marks are slower than a cursor.
        peers: names of other relays that are measured after ours. `quick`: on few events.
    """

    stores: Sequence[str] = ("log", "row")
    broker: str = "kafka"
    events: int = 1_000_000
    row_events: int = 200_000
    keys: int = 1_000
    payload: int = 200
    page: int = 1_000
    pages: int = 4
    rounds: int = 3
    latency_seconds: float = 15.0
    peers: Sequence[str] = ()
    quick: bool = False

    @property
    def server(self) -> dict[str, str]:
        """PostgreSQL's settings: the ones that a peer needs hold for all that is measured."""
        wanted = dict(_SERVER)
        for peer in self.peers:
            wanted |= SERVER.get(peer, {})
        return wanted


@dataclass(slots=True)
class Outcome:
    """What was measured until now."""

    throughput: dict[str, Throughput]
    latency: Latency | None = None
    store_of_latency: str = ""
    peers: dict[str, PeerFigure | NotMeasured] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        return (
            all(one.passed for one in self.throughput.values())
            and (self.latency is None or all(kept for _, _, kept in latency_lines(self.latency)))
            and all(one.passed is not False for one in self.peers.values())
        )

    @property
    def ours(self) -> tuple[str, float]:
        """The store that peers are compared with, and its events a second: the log store if it was measured."""
        store = "log" if "log" in self.throughput else next(iter(self.throughput))
        return store, self.throughput[store].events_per_second

    def as_json(self, machine: Machine, plan: Plan, servers: str) -> dict[str, Any]:
        latency = self.latency
        return {
            "stores": {store: one.as_json() for store, one in self.throughput.items()},
            "latency_ms": None
            if latency is None
            else {
                "store": self.store_of_latency,
                "p50": round(latency.p50, 3),
                "p99": round(latency.p99, 3),
                "events": latency.events,
                "rate": LATENCY_RATE,
                "relay_cpu_share": round(latency.busy_share, 4),
                "relay_idle_cpu_share": round(latency.idle_share, 4),
            },
            "peers": {name: one.as_json() for name, one in self.peers.items()},
            "plan": {"events": plan.events, "keys": plan.keys, "payload": plan.payload, "pages": plan.pages},
            "machine": {"servers": servers, "cores": machine.cores, "load_before": round(machine.load_before, 2)},
            "passed": self.passed,
        }


def latency_lines(latency: Latency) -> list[tuple[str, str, bool]]:
    """What, measured and promised, and whether it was kept."""
    rows = (
        ("commit to consumer, half of the events", latency.p50, P50_TARGET, "ms"),
        ("commit to consumer, 99 of 100", latency.p99, P99_TARGET, "ms"),
        (f"of a core, at {LATENCY_RATE:g} events/s", latency.busy_share, BUSY_TARGET, ""),
        ("of a core, when nothing comes", latency.idle_share, IDLE_TARGET, ""),
    )
    return [(what, f"{got:.3g} of {most:g} {unit}".rstrip(), got <= most) for what, got, most, unit in rows]


def measure(plan: Plan, say: Callable[[str], None]) -> Iterator[Outcome]:
    """Yields what is known after each step; the last one is the whole.

    Raises:
        StartError: a server could not be started, or a measured process failed.
    """
    outcome = Outcome({})
    topic = f"bench-{uuid.uuid4().hex[:8]}"
    with contextlib.ExitStack() as stack:
        say("PostgreSQL and the broker start")
        database = stack.enter_context(LocalPostgres(settings=plan.server)).address
        bootstrap = stack.enter_context(_broker(plan.broker))
        KafkaAddress(bootstrap).create_topic(topic, PARTITIONS)
        stack.callback(_forget, bootstrap, topic)
        for store in plan.stores:
            events = plan.events if store == "log" else min(plan.events, plan.row_events)
            tables = Tables(database, topic)
            say(f"{events:,} events of {plan.payload} bytes over {plan.keys:,} keys are written")
            tables.fill(events, plan.keys, plan.payload)
            job = Job("", bootstrap, topic, store, events, plan.page, plan.pages)
            outcome.throughput[store] = measure_throughput(tables, job, plan.rounds, say)
            database.drop_database(tables.template)
            yield outcome
        if plan.latency_seconds:
            store = plan.stores[0]
            say(f"commit to consumer at {LATENCY_RATE:g} transactions a second, {plan.latency_seconds:g} s")
            dsn = Tables(database, topic).empty()
            job = Job(dsn, bootstrap, topic, store, 0, plan.page, plan.pages)
            outcome.latency = measure_latency(job, PARTITIONS, LATENCY_RATE, plan.latency_seconds)
            outcome.store_of_latency = store
            yield outcome
        for peer in plan.peers:
            outcome.peers[peer] = measure_peer(
                peer,
                database,
                bootstrap,
                keys=plan.keys,
                payload=plan.payload,
                quick=plan.quick,
                ours=outcome.ours,
                say=say,
            )
            yield outcome


_SERVER = {"shared_buffers": "512MB", "max_wal_size": "8GB", "autovacuum_naptime": "10s"}
"""A million events fit into memory, as they would on a server of their own."""


@contextlib.contextmanager
def _broker(which: str) -> Iterator[str]:
    if which not in ("kafka", "tansu"):
        yield which
        return
    server = LocalKafka() if which == "kafka" else LocalTansu()
    if reason := server.available():
        raise StartError(f"{reason}; or give another broker: --broker tansu, --broker ADDRESS")
    with server:
        yield server.bootstrap


def _forget(bootstrap: str, topic: str) -> None:
    with contextlib.suppress(StartError):
        KafkaAddress(bootstrap).delete_topic(topic)


def servers_of(plan: Plan) -> str:
    """Which servers are measured with."""
    broker = {"kafka": "Apache Kafka", "tansu": "Tansu"}.get(plan.broker, plan.broker)
    if plan.broker == "kafka" and LocalKafka.available() is None:
        broker += f" {LocalKafka().version}"
    level = f" (wal_level={plan.server['wal_level']})" if "wal_level" in plan.server else ""
    return f"PostgreSQL {LocalPostgres().version}{level}, {broker}"
