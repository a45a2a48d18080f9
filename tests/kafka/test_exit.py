"""A process ends although its brokers do not answer: frozen, or gone."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from quiesce.testing.kafka import LocalKafka
from quiesce.testing.kafka_address import KafkaAddress
from quiesce.testing.tansu import LocalTansu

_SCRIPT = Path(__file__).with_name("leaving.py")
_BOUND = 3.0


Leaving = Callable[[str, str], "subprocess.Popen[str]"]


@pytest.fixture
def leaving() -> Iterator[Leaving]:
    """Starts the script; returns when it is ready, its broker still there."""
    started: list[subprocess.Popen[str]] = []

    def start(what: str, bootstrap: str) -> "subprocess.Popen[str]":
        topic = f"t-{uuid4().hex[:8]}"
        KafkaAddress(bootstrap).create_topic(topic, 1)
        process = subprocess.Popen(
            [sys.executable, str(_SCRIPT), what, bootstrap, topic, f"group-{topic}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def assert_ends(process: "subprocess.Popen[str]") -> str:
    """Lets it go on; returns what it said."""
    began = time.monotonic()
    out, err = process.communicate("go\n", timeout=30)
    assert process.returncode == 0, err
    assert time.monotonic() - began < _BOUND
    assert err == ""
    return out


@pytest.mark.needs("kafka")
@pytest.mark.xdist_group("kafka to pause")
@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("publisher", "Closed(forced=True, undelivered=1, detail='1 messages had no ack') {}\n"),
        ("publisher_not_closed", ""),
        ("publisher_discarded", ""),
        ("source", "forced=True"),
        ("source_not_closed", ""),
    ],
    ids=lambda one: one if one.isidentifier() else "",
)
def test_a_frozen_broker_keeps_no_process_alive(
    leaving: Leaving, paused_kafka: LocalKafka, what: str, says: str
) -> None:
    process = leaving(what, paused_kafka.bootstrap)
    paused_kafka.pause()
    assert says in assert_ends(process)


@pytest.mark.needs("tansu")
def test_a_broker_that_is_gone_keeps_no_process_alive(leaving: Leaving) -> None:
    with LocalTansu() as broker:
        process = leaving("publisher", broker.bootstrap)
        broker.kill()
        assert "undelivered=1" in assert_ends(process)
