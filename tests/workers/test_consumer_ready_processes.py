"""What a consumer's process says of its readiness, on Apache Kafka; and how it ends if it can never be ready."""

import asyncio
import json
import re
import signal
import socket
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from broker import committed, wait_until
from test_consumer_processes import PARTITIONS, Load, effects, sql

from quiesce.testing.kafka import LocalKafka
from quiesce.testing.kafka_address import KafkaAddress
from quiesce.testing.service_process import ServiceProcess
from quiesce_pytest import MakeTopic

HERE = Path(__file__).parent

Start = Callable[..., ServiceProcess]

both_protocols = pytest.mark.parametrize("protocol", ["classic", "consumer"])


@pytest.fixture
def start(database: str, group: str) -> Iterator[Start]:
    processes: list[ServiceProcess] = []
    environment = {"GROUP": group, "DSN": database, "PYTHONPATH": str(HERE)}
    asyncio.run(sql(database, 'CREATE TABLE effect (partition int, "offset" bigint, pid int)'))

    def begin(which: str, **more: str) -> ServiceProcess:
        process = ServiceProcess(f"consuming_services:{which}", environment={**environment, **more})
        processes.append(process.start())
        return process

    yield begin
    for process in processes:
        process.discard()


def readiness(process: ServiceProcess) -> tuple[int, str]:
    """The status, and the reason."""
    port = process.wait_for(r"port (\d+)", 60)[1]
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health/ready", timeout=5) as answer:
            return answer.status, str(json.load(answer).get("reason", ""))
    except urllib.error.HTTPError as refused:
        return refused.code, str(json.load(refused)["reason"])


def not_ready(process: ServiceProcess, why: str, within: float = 40.0) -> None:
    """Waits until it says so, and asks for a while longer: it does not waver."""
    wait_until(lambda: readiness(process)[0] == 503 and why in readiness(process)[1], f"not ready: {why}", within)
    until = time.monotonic() + 3.0
    while time.monotonic() < until:
        status, reason = readiness(process)
        assert (status, why in reason) == (503, True), reason


def ready(process: ServiceProcess) -> None:
    wait_until(lambda: readiness(process)[0] == 200, "ready", 60)


def handed(process: ServiceProcess) -> Counter[tuple[int, int]]:
    found = re.findall(r"handed (\d+) (\d+)\n", process.text())
    return Counter((int(partition), int(offset)) for partition, offset in found)


@pytest.mark.needs("kafka")
@pytest.mark.timeout(240)  # a broker of its own that goes and comes
@both_protocols
def test_K12_a_broker_that_is_away_for_longer_than_the_session_costs_no_effect_and_doubles_none(
    protocol: str, own_kafka: Callable[..., LocalKafka], group: str, database: str, start: Start
) -> None:
    broker = own_kafka()
    broker.create_topic("orders", PARTITIONS)
    load = Load(broker.bootstrap, "orders")
    load.produce(400)
    process = start("watched", BOOTSTRAP=broker.bootstrap, TOPIC="orders", PROTOCOL=protocol, SESSION_MS="1500")
    wait_until(lambda: len(effects(database)) > 50, "it handles", 60)
    ready(process)
    broker.kill()
    not_ready(process, "cannot")
    broker.start()
    load.produce(50)
    if protocol == "classic":
        # With the other protocol only the broker knows of sessions, and it was not there.
        process.wait_for("the group has gone on without us: lost", 60)
    wait_until(lambda: len(effects(database)) == load.acked, f"{load.acked} records are handled", 90)
    ready(process)
    process.signal()
    assert process.wait(40) == 0, process.text()
    assert set(effects(database).values()) == {1}
    if protocol == "classic":
        assert max(handed(process).values()) > 1, "nothing came twice, so the inbox had nothing to do"
    assert sum(committed(broker.bootstrap, group, "orders", PARTITIONS).values()) == load.acked


@pytest.mark.timeout(180)
@both_protocols
def test_K12_a_process_that_is_stopped_in_the_middle_of_a_rebalance_for_longer_than_its_session_doubles_no_effect(
    protocol: str, kafka: str, topic: MakeTopic, group: str, database: str, start: Start
) -> None:
    name = topic(partitions=PARTITIONS)
    load = Load(kafka, name)
    load.produce(60)
    where = {"BOOTSTRAP": kafka, "TOPIC": name, "PROTOCOL": protocol, "SESSION_MS": "1500"}
    # Each of its handlers is in the middle when the group wants partitions back, and when it is stopped.
    stopped = start("watched", SECONDS="1.0", **where)
    stopped.wait_for("handed", 60)
    other = start("watched", **where)
    other.wait_for("opened kafka-consumer", 60)
    stopped.signal(signal.SIGSTOP)
    wait_until(lambda: sum(committed(kafka, group, name, PARTITIONS).values()) == load.acked, "the other goes on", 60)
    stopped.signal(signal.SIGCONT)
    stopped.wait_for("the group has gone on without us: lost", 60)
    # It takes its part again.
    load.produce(60)
    wait_until(lambda: len(effects(database)) == load.acked, f"{load.acked} records are handled", 60)
    wait_until(lambda: sum(committed(kafka, group, name, PARTITIONS).values()) == load.acked, "all is committed", 60)
    for process in (stopped, other):
        process.signal()
        assert process.wait(40) == 0, process.text()
    assert set(effects(database).values()) == {1}
    assert handed(stopped).keys() & handed(other).keys(), "nothing came twice, so the inbox had nothing to do"
    assert sum(committed(kafka, group, name, PARTITIONS).values()) == load.acked, "the group went back"


@pytest.mark.timeout(180)
@both_protocols
def test_K21_readiness_falls_while_the_topic_is_missing(protocol: str, kafka: str, start: Start) -> None:
    missing = f"missing-{uuid4().hex[:8]}"
    process = start("watched", BOOTSTRAP=kafka, TOPIC=missing, PROTOCOL=protocol)
    not_ready(process, f"topic '{missing}' is not there")
    KafkaAddress(kafka).create_topic(missing, 1)
    ready(process)
    Load(kafka, missing).produce(1)
    process.wait_for("handles", 60)
    process.signal()
    assert process.wait(40) == 0, process.text()


@pytest.mark.timeout(180)
def test_K20_readiness_falls_while_the_members_place_is_held(kafka: str, topic: MakeTopic, start: Start) -> None:
    where = {"BOOTSTRAP": kafka, "TOPIC": topic(partitions=1), "PROTOCOL": "consumer", "INSTANCE": "orders-1"}
    holder = start("watched", **where)
    load = Load(kafka, where["TOPIC"])
    load.produce(1)
    holder.wait_for("handles", 60)
    process = start("watched", **where)
    not_ready(process, "group.instance.id")
    assert readiness(holder)[0] == 200
    # It does not leave, so its place is held until its session is over.
    holder.kill()
    ready(process)
    load.produce(1)
    process.wait_for("handles", 60)
    process.signal()
    assert process.wait(40) == 0, process.text()


@pytest.mark.timeout(180)
def test_K20_who_is_fenced_ends_its_process_with_the_reason(kafka: str, topic: MakeTopic, start: Start) -> None:
    where = {"BOOTSTRAP": kafka, "TOPIC": topic(partitions=1), "INSTANCE": "orders-1"}
    process = start("watched", **where)
    Load(kafka, where["TOPIC"]).produce(1)
    process.wait_for("handles", 60)
    second = start("watched", **where)
    assert process.wait(60) == 1
    assert re.search(r"worker watched failed: .*fenced", process.text()), process.text()
    ready(second)
    second.signal()
    assert second.wait(40) == 0, second.text()


@pytest.mark.timeout(120)
def test_a_consumer_whose_source_is_closed_under_it_ends_its_process_with_the_reason(
    kafka: str, topic: MakeTopic, start: Start
) -> None:
    process = start("closed", BOOTSTRAP=kafka, TOPIC=topic(partitions=1))
    assert process.wait(60) == 1, process.text()
    assert re.search(r"worker closed failed: .*is not open: nothing can be fetched", process.text()), process.text()


@pytest.mark.timeout(120)
def test_a_consumer_whose_source_cannot_be_opened_ends_its_process_with_the_reason(
    topic: MakeTopic, start: Start
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{taken.getsockname()[1]}"
        process = start("impatient", BOOTSTRAP=nobody, TOPIC="orders")
        assert process.wait(60) == 1, process.text()
    assert re.search(r"cannot start: kafka-consumer \S+ was not available for 1 s", process.text()), process.text()

    wrong = start("watched", BOOTSTRAP="127.0.0.1:1", TOPIC="orders", SESSION_MS="-5")
    assert wrong.wait(60) == 78, wrong.text()
    assert re.search(r"cannot start: .*session\.timeout\.ms", wrong.text()), wrong.text()
