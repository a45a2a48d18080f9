"""`quiesce outbox doctor --metrics`: what relays measured, against the bound of a stop; and the same in the report."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator

import pytest
from mock_cluster import MockCluster
from operations_table import as_if_new
from prometheus_client import CollectorRegistry

from quiesce import Budget, Service, running, service
from quiesce.cli.main import main
from quiesce.kafka import KafkaPublisher, topics
from quiesce.metrics import PrometheusMetrics
from quiesce.outbox import OutboxEvent
from quiesce.relay import Relay
from quiesce.testing.memory_outbox import MemoryOutbox, MemoryTable

BUDGET = Budget(grace_period=20, prestop=0, http=1, workers=6, producers=2, pools=1, report=1, margin=1)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[MockCluster]:
    # These brokers do not know the question for a topic's limit, and are slow to say where the topic is.
    monkeypatch.setattr(topics, "_ASK", 2.0)
    with MockCluster() as cluster:
        yield cluster


@pytest.fixture
async def doctor(
    outbox_database: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[str], Awaitable[tuple[int, dict[str, str]]]]:
    """Runs it with the metrics at a URL; returns its status, and the last of its checks."""
    async with as_if_new(outbox_database):
        pass
    monkeypatch.setenv("QUIESCE_DSN", outbox_database)

    async def run(url: str) -> tuple[int, dict[str, str]]:
        status = await asyncio.to_thread(main, ["outbox", "doctor", "--metrics", url, "--json"])
        told = json.loads(capsys.readouterr().out)
        return status, told["checks"][-1]

    return run


Doctor = Callable[[str], Awaitable[tuple[int, dict[str, str]]]]


async def test_a_slow_broker_shows_in_doctor_and_in_the_report(cluster: MockCluster, doctor: Doctor) -> None:
    """Five batches in flight, 0.2 seconds each, one event a batch: 25 events a second at most."""
    topic = cluster.create_topic("t")
    table = MemoryTable()
    table.enqueue(*(OutboxEvent(topic, f"k{n % 50}", "Happened", str(n)) for n in range(2000)))
    publisher = KafkaPublisher(cluster.bootstrap, settings={"batch.num.messages": 1, "linger.ms": 0})
    # Without a bound of its own: the budget's counts.
    relay = Relay(MemoryOutbox(table), publisher)
    cluster.set_round_trip(0.2)

    async def app(scope: object, receive: object, send: object) -> None:
        raise AssertionError("only the metrics are asked for")

    @service("orders", budget=BUDGET, observers=[PrometheusMetrics(CollectorRegistry())])
    async def orders(s: Service) -> None:
        s.http(app, host="127.0.0.1", port=0)
        s.run(relay)

    async with running(orders) as s:
        async with asyncio.timeout(35):
            while relay.progress.pace is None:
                await asyncio.sleep(0.05)
        _, check = await doctor(f"http://127.0.0.1:{s.port}/metrics")
        assert (check["name"], check["verdict"]) == ("relay relay", "warn"), check
        assert "and a stop has 6 s: fewer are sent at once" in check["found"]
        assert "raise the budget's `workers`, or the relay's `bound`" in check["advice"]
        report = await s.stop()
    (worker,) = report.workers
    assert worker.outcome == "finished"
    assert worker.figures.startswith("at most ")
    assert "of 1,000 events in flight: the broker answered " in worker.figures
    assert worker.figures.endswith(" a second at least, and a stop has 6 s for them")
    assert worker.figures in report.table()


async def test_metrics_that_do_not_answer_or_have_no_relay(doctor: Doctor) -> None:
    _, check = await doctor("http://127.0.0.1:1/metrics")
    assert (check["name"], check["verdict"]) == ("metrics http://127.0.0.1:1/metrics", "warn")
    assert "no answer: " in check["found"]
    assert "PrometheusMetrics" in check["advice"]

    @service("orders", budget=BUDGET, observers=[PrometheusMetrics(CollectorRegistry())])
    async def orders(s: Service) -> None:
        s.http(lambda scope, receive, send: asyncio.sleep(0), host="127.0.0.1", port=0)

    async with running(orders) as s:
        _, check = await doctor(f"http://127.0.0.1:{s.port}/metrics")
        assert (check["verdict"], check["found"]) == ("warn", "no relay tells its figures there")


@pytest.mark.parametrize("url", ["ftp://host/metrics", "host:8080", "file:///etc/passwd", "http://"])
def test_what_is_no_url_is_refused(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["outbox", "doctor", "--metrics", url])
    assert ended.value.code == 2
    assert f"got {url!r}" in capsys.readouterr().err
