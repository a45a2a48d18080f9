"""LocalKafka: a real broker that keeps its log over a stop and a kill, and that tells what it lacks."""

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from read_only import read_only_directory
from waiting import all_gone

from quiesce.errors import StartError
from quiesce.testing.kafka import LocalKafka
from quiesce.testing.kafka_programs import LIBS_VARIABLE, find_libs

GROUPED = pytest.mark.xdist_group("local_kafka")
BOUND = 25.0


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalKafka]:
    with LocalKafka(properties={"message.max.bytes": "200000"}) as broker:
        yield broker


def publish(bootstrap: str, topic: str, value: bytes) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "log_level": 0})
    failures: list[object] = []
    producer.produce(topic, value, on_delivery=lambda error, _: failures.append(error) if error else None)
    assert producer.flush(BOUND) == 0
    assert failures == []


def consume(bootstrap: str, topic: str, group: str, count: int) -> list[bytes | None]:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest", "log_level": 0}
    )
    consumer.subscribe([topic])
    end = time.monotonic() + BOUND
    values: list[bytes | None] = []
    while len(values) < count and time.monotonic() < end:
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            values.append(message.value())
    consumer.close()
    return values


@pytest.mark.needs("kafka")
@GROUPED
def test_it_keeps_its_port_and_its_log_over_a_stop_and_a_kill(broker: LocalKafka) -> None:
    broker.create_topic("kept", partitions=2, config={"retention.ms": "3600000"})
    publish(broker.bootstrap, "kept", b"1")
    bootstrap, pid = broker.bootstrap, broker.pid

    broker.stop()
    assert all_gone([pid])
    broker.start()
    assert broker.bootstrap == bootstrap
    publish(bootstrap, "kept", b"2")

    pid = broker.pid
    broker.kill()
    assert all_gone([pid])
    broker.start()
    assert sorted(filter(None, consume(bootstrap, "kept", "g", 2))) == [b"1", b"2"]


@pytest.mark.needs("kafka")
@GROUPED
def test_a_paused_broker_takes_connections_and_does_not_answer(broker: LocalKafka) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    broker.pause()
    socket.create_connection(("127.0.0.1", broker.port), timeout=1.0).close()
    with pytest.raises(KafkaException):
        admin.list_topics(timeout=0.5)
    broker.resume()
    assert len(admin.list_topics(timeout=BOUND).brokers) == 1


@pytest.mark.needs("kafka")
@GROUPED
def test_topics_are_made_on_request_only(broker: LocalKafka) -> None:
    broker.create_topic("twice")
    with pytest.raises(StartError, match=r"cannot create topic twice on 127\.0\.0\.1"):
        broker.create_topic("twice")
    broker.delete_topic("twice")
    broker.delete_topic("twice")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    topic = admin.list_topics("never-made", timeout=5.0).topics["never-made"]
    assert topic.error is not None


@pytest.mark.needs("kafka")
@GROUPED
def test_the_settings_given_are_the_brokers(broker: LocalKafka) -> None:
    broker.create_topic("small")
    with pytest.raises(AssertionError, match="MSG_SIZE_TOO_LARGE"):
        publish(broker.bootstrap, "small", b"x" * 300_000)


@GROUPED
def test_the_first_group_of_a_brokers_life_finds_its_topic_of_offsets(own_kafka: Callable[..., LocalKafka]) -> None:
    """Without the warm-up at the start, that group makes it, and waits 3 s for it."""
    broker = own_kafka()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    assert "__consumer_offsets" in admin.list_topics(timeout=BOUND).topics


def test_missing_jars_come_with_the_way_to_get_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    give_java(tmp_path, monkeypatch, "21.0.1")
    monkeypatch.setenv(LIBS_VARIABLE, str(tmp_path))
    reason = LocalKafka.available()
    assert reason == (
        f"Apache Kafka's jars are not in {tmp_path}: run `make kafka` in a checkout (it needs Maven), or name their "
        "directory in QUIESCE_KAFKA_LIBS"
    )
    with pytest.raises(StartError, match="run `make kafka`"):
        LocalKafka().start()
    with pytest.raises(StartError, match="run `make kafka`"):
        _ = LocalKafka().version


def test_missing_java_comes_with_the_way_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(StartError, match=r"Java is not here: install Java 17 or newer, and Maven"):
        LocalKafka().start()


def test_an_old_java_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    give_java(tmp_path, monkeypatch, "1.8.0_402")
    assert LocalKafka.available() == "Java 1.8.0_402 is too old for Apache Kafka: install Java 17 or newer"


def test_the_jars_are_found_from_below_the_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    libs = tmp_path / "tools" / "kafka" / "libs"
    libs.mkdir(parents=True)
    (libs / "kafka_2.13-9.9.9.jar").touch()
    below = tmp_path / "deep" / "below"
    below.mkdir(parents=True)
    monkeypatch.delenv(LIBS_VARIABLE, raising=False)
    monkeypatch.chdir(below)
    assert find_libs() == libs
    assert LocalKafka().version == "9.9.9"


@pytest.mark.needs("kafka")
def test_a_directory_that_cannot_be_written_is_named() -> None:
    message = r"cannot make a directory below .*: Permission denied\. Set TMPDIR"
    with read_only_directory() as directory, pytest.raises(StartError, match=message):
        LocalKafka(below=directory).start()


def give_java(directory: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    """A program that says it is this Java."""
    program = directory / "bin" / "java"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(directory))
