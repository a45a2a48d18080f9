"""A service whose broker, or database, is away when it starts says so at once, and says why."""

import json
import logging
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from quiesce.kafka.client_log import Tamed
from quiesce.testing.service_process import ServiceProcess

HERE = Path(__file__).parent

Start = Callable[..., ServiceProcess]


@pytest.fixture
def start() -> Iterator[Start]:
    processes: list[ServiceProcess] = []

    def begin(name: str, **environment: str) -> ServiceProcess:
        process = ServiceProcess(f"starting_services:{name}", environment={"PYTHONPATH": str(HERE), **environment})
        processes.append(process.start())
        return process

    yield begin
    for process in processes:
        process.discard()


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address that is taken and where nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


def readiness(process: ServiceProcess) -> dict[str, Any]:
    port = process.wait_for(r"port (\d+)")[1]
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/health/ready", timeout=5)
    assert refused.value.code == 503
    return dict(json.loads(refused.value.read()))


@pytest.mark.serial
def test_no_broker_is_told_at_once_with_address_and_reason_and_in_a_few_lines(start: Start, nobody: str) -> None:
    process = start("needs_kafka", BOOTSTRAP=nobody)
    process.wait_for(r"port \d+")
    began = time.monotonic()
    line = process.wait_for(r".*kafka-producer is not available \(try 1\): .*\n", within=3)[0]
    assert time.monotonic() - began < 3, "it was known in milliseconds"
    assert nobody in line
    assert "Connection refused" in line
    reason = readiness(process)["reason"]
    assert reason.startswith("kafka-producer is not available: ")
    assert nobody in reason
    assert "Connection refused" in reason
    process.wait_for(r"not available \(try 5\)", within=20)
    assert process.text().count("librdkafka") <= 3, process.text()
    process.signal()
    assert process.wait(5) == 0, process.text()


@pytest.mark.serial
def test_no_database_is_told_without_the_user_and_named_once(start: Start, nobody: str) -> None:
    process = start("needs_postgres", DSN=f"postgresql://someone:hush@{nobody}/shop")
    process.wait_for(r"postgres is not available \(try 1\)", within=15)
    reason = readiness(process)["reason"]
    assert reason.startswith("postgres is not available: postgresql://")
    assert "someone" not in reason
    assert "hush" not in process.text()
    process.signal()
    assert process.wait(5) == 0, process.text()


def line(text: str, level: int = logging.ERROR) -> logging.LogRecord:
    return logging.LogRecord("quiesce.kafka.librdkafka", level, __file__, 1, text, (), None)


def test_the_clients_own_log_says_the_same_once_in_a_while() -> None:
    now = 0.0
    tamed = Tamed(again_after=10.0, clock=lambda: now)
    first = line("FAIL [rdkafka#producer-1] [thrd:b:9092/bootstrap]: b:9092: refused (after 0ms in state CONNECT)")
    again = line("FAIL [rdkafka#producer-7] [thrd:b:9092/1]: b:9092: refused (after 13ms in state CONNECT, 9 more)")
    assert tamed.filter(first)
    assert first.levelno == logging.WARNING
    assert not tamed.filter(again)
    assert tamed.filter(line("FAIL [rdkafka#producer-7] [thrd:b:9092/1]: b:9092: no such host"))
    now = 10.0
    assert tamed.filter(again)
    assert again.getMessage().endswith("b:9092: refused (1 more like this since it was last written)")


def test_the_clients_own_log_never_fills_the_memory() -> None:
    tamed = Tamed(clock=lambda: 0.0)
    for number in range(1000):
        assert tamed.filter(line(f"FAIL {'x' * number}"))
    assert len(tamed._lines) <= 200
