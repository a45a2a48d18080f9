"""Threads that do not end, in real processes: left behind, named, and the exit is not held."""

import re
import signal
import time
from collections.abc import Iterator

import pytest
from process_scene import Start, processes


@pytest.fixture
def start() -> Iterator[Start]:
    yield from processes("worker_services")


@pytest.mark.serial
def test_s19_a_thread_worker_that_blocks_for_ever_does_not_hold_the_exit(start: Start) -> None:
    process = start("left_thread")
    process.wait_for("thread blocks")
    began = time.monotonic()
    process.signal(signal.SIGTERM)
    assert process.wait(6) == 75
    assert time.monotonic() - began < 4.8, "the hard deadline was not needed"
    report = process.report()
    assert report is not None
    assert [(w["worker"], w["outcome"]) for w in report["workers"]] == [("blocks_in_get", "abandoned")]
    assert {"worker": "blocks_in_get", "what": "iteration", "count": 1} in report["abandoned"]
    assert "closed pool" in process.text()


@pytest.mark.serial
def test_s19_a_blocked_executor_holds_the_interpreter_and_the_hard_deadline_ends_it_with_70(start: Start) -> None:
    process = start("stuck_executor")
    process.wait_for("executor blocks")
    began = time.monotonic()
    process.signal(signal.SIGTERM)
    assert process.wait(8) == 70
    assert 4.5 < time.monotonic() - began < 6.5
    text = process.text()
    assert "closed pool" in text, "the closing was in order all the same"
    assert re.search(r'queue\.py", line \d+ in get', text), "every stack is there"


def test_a_signal_while_the_interpreter_ends_does_not_turn_a_clean_0_into_143(start: Start) -> None:
    process = start("brief")
    assert process.wait(10) == 0
    report = process.report()
    assert report is not None
    assert report["exit_code"] == 0
