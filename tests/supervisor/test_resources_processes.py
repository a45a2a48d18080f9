"""Closers in real processes: what hangs holds neither the next closer, nor the loop, nor the exit."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from process_scene import Start, processes, report_of

from quiesce.testing.kafka import LocalKafka
from quiesce.testing.postgres_address import PostgresAddress
from quiesce.testing.service_process import ServiceProcess

EXIT = 1.5
"""Seconds from the report to the end of the process, on a busy machine."""


@pytest.fixture
def start() -> Iterator[Start]:
    yield from processes("closing_services")


def closing_of(process: ServiceProcess) -> dict[str, dict[str, Any]]:
    return {resource["resource"]: resource for resource in report_of(process)["resources"]}


@pytest.mark.serial
def test_S5_a_close_that_blocks_in_C_holds_neither_the_loop_nor_the_exit(start: Start) -> None:
    process = start("stuck_in_c")
    process.wait_for("started")
    process.wait_for("readiness: ready")
    process.signal()
    process.wait_for("close in C began", within=5)
    process.wait_for(r"close in C began(.|\n)*tick(.|\n)*tick", within=3)
    process.wait_for("shutdown report", within=4)
    reported = time.monotonic()
    assert process.wait(5) == 75
    assert time.monotonic() - reported < EXIT, "the exit was held"
    closed = closing_of(process)
    assert closed["client"]["outcome"] == "overran"
    assert "in close" in closed["client"]["detail"]
    assert "closing_services.py" in closed["client"]["detail"]
    assert closed["pool"]["outcome"] == "clean"
    assert "closed pool" in process.text()


@pytest.mark.serial
def test_S19_a_blocking_exit_that_waits_in_a_queue_does_not_hold_the_exit(start: Start) -> None:
    process = start("stuck_in_queue")
    process.wait_for("readiness: ready")
    process.signal()
    process.wait_for("shutdown report", within=6)
    reported = time.monotonic()
    assert process.wait(5) == 75
    assert time.monotonic() - reported < EXIT, "the exit was held"
    closed = closing_of(process)
    assert closed["client"]["outcome"] == "overran"
    assert "in waits_in_queue" in closed["client"]["detail"]
    assert closed["pool"]["outcome"] == "clean"


@pytest.mark.serial
def test_S19_a_closer_that_waits_in_an_executor_is_left_at_the_hard_deadline_with_its_stack(start: Start) -> None:
    process = start("stuck_in_to_thread")
    process.wait_for("readiness: ready")
    process.signal()
    # The interpreter joins the executor's threads at its exit: nothing but the hard deadline can end that.
    assert process.wait(8) == 70
    text = process.text()
    assert "closed pool" in text
    assert "in get" in text, "the stack shows where it waits"
    first = text.split("shutdown report", 2)[1]
    assert '"resource":"client"' in first


@pytest.mark.serial
def test_S32_SystemExit_in_closers_skips_no_other(start: Start) -> None:
    process = start("exits_while_closing")
    process.wait_for("readiness: ready")
    process.signal()
    assert process.wait(5) == 75
    closed = closing_of(process)
    assert {name: one["outcome"] for name, one in closed.items()} == {
        "leaves in a thread": "failed",
        "leaves": "failed",
        "pool": "clean",
    }
    assert "closed pool" in process.text()


@pytest.mark.serial
def test_S32_every_closer_is_called_where_no_time_is_left_at_all(start: Start) -> None:
    process = start("no_time")
    assert process.wait(5) == 75, process.text()
    assert set(closing_of(process)) == {"first", "second", "third"}
    assert process.find(r"\] closed third(.|\n)*\] closed second(.|\n)*\] closed first"), process.text()


@pytest.mark.serial
def test_blocking_things_of_the_standard_library_close_clean(start: Start) -> None:
    process = start("blocking_things")
    process.wait_for("readiness: ready")
    process.signal()
    assert process.wait(5) == 0
    assert {one["outcome"] for one in closing_of(process).values()} == {"clean"}


@pytest.mark.serial
def test_S6_a_connection_that_is_never_given_back_is_cut_and_named(
    start: Start, postgres: PostgresAddress, database: str
) -> None:
    process = start("forgets", DSN=database)
    pid = process.wait_for(r"holding (\d+)")[1]
    process.wait_for("readiness: ready")
    process.signal()
    assert process.wait(6) == 75
    closed = closing_of(process)["orders"]
    assert closed["outcome"] == "forced"
    assert "1 connection(s) not given back" in closed["detail"]
    assert "in keeps_a_connection" in closed["detail"]
    until = time.monotonic() + 2
    while postgres.execute(f"SELECT count(*) FROM pg_stat_activity WHERE pid = {pid}") != "0":
        assert time.monotonic() < until, "the server still has it"


def delivered(bootstrap: str, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": f"count-{topic}"})
    try:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=5)
        return int(high - low)
    finally:
        consumer.close()


@pytest.mark.serial
def test_S30_a_full_linger_buffer_is_flushed_when_the_producer_is_closed(
    start: Start, kafka: str, topic: Callable[..., str]
) -> None:
    name = topic("linger", 1)
    process = start("publishes", BOOTSTRAP=kafka, TOPIC=name)
    process.wait_for("handed over, answered: False", within=15)
    # The first event for a partition goes alone, and at once.
    assert delivered(kafka, name) == 1, "the others are still in the buffer"
    process.signal()
    assert process.wait(6) == 0, process.text()
    assert delivered(kafka, name) == 10
    closed = closing_of(process)["kafka-producer"]
    assert (closed["outcome"], closed["undelivered"]) == ("clean", 0)


@pytest.mark.serial
@pytest.mark.needs("kafka")
@pytest.mark.xdist_group("kafka to stop")
@pytest.mark.parametrize("how", ["frozen", "killed"])
def test_S4_brokers_that_are_gone_hold_neither_producer_nor_pool(
    start: Start, own_kafka: Callable[..., LocalKafka], how: str
) -> None:
    broker = own_kafka()
    broker.create_topic("orders", 1)
    process = start("publishes", BOOTSTRAP=broker.bootstrap, TOPIC="orders")
    process.wait_for("handed over, answered: False", within=15)
    if how == "frozen":
        broker.pause()
    else:
        broker.kill()
    began = time.monotonic()
    process.signal()
    try:
        assert process.wait(9) == 75
    finally:
        if how == "frozen":
            broker.resume()
    assert time.monotonic() - began < 6, "inside the budget, brokers or not"
    closed = closing_of(process)
    # S30: what the buffer held is counted.
    assert (closed["kafka-producer"]["outcome"], closed["kafka-producer"]["undelivered"]) == ("forced", 9)
    assert closed["pool"]["outcome"] == "clean"
    assert "closed pool" in process.text()
    left = {one["what"]: one["count"] for one in report_of(process)["abandoned"]}
    assert left["undelivered messages"] == 9
