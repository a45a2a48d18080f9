"""A loop that is blocked while partitions have to go is noticed from another thread."""

import asyncio
import logging
import threading
import time

import pytest

from quiesce.kafka import loop_watch
from quiesce.kafka.loop_watch import LoopWatch


def blocks_on_purpose(until: threading.Event) -> None:
    until.wait(30)


async def watched(block: bool, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The statuses that a process would have ended with."""
    monkeypatch.setattr(loop_watch, "_LOOK", 0.01)
    left: list[int] = []
    over = threading.Event()
    watch = LoopWatch(asyncio.get_running_loop(), left.append)

    def member() -> None:
        watch.end_if_blocked(watch.ask(), "work on orders[0] has not ended")
        over.set()

    threading.Thread(target=member, daemon=True).start()
    if block:
        blocks_on_purpose(over)
    else:
        until = time.monotonic() + 30
        while not over.is_set() and time.monotonic() < until:
            await asyncio.sleep(0)
    return left


async def test_K11_a_loop_that_is_blocked_ends_the_process_and_the_log_says_where(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert await watched(True, monkeypatch) == [1]
    assert "work on orders[0] has not ended" in caplog.text
    assert "blocks_on_purpose" in caplog.text


async def test_a_loop_that_turns_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await watched(False, monkeypatch) == []


async def test_a_log_that_takes_nothing_does_not_keep_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_watch, "_TELL_BOUND", 0.05)
    free = threading.Event()

    class Stuck(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            free.wait(30)

    stuck = Stuck()
    logging.getLogger("quiesce.kafka").addHandler(stuck)
    try:
        assert await watched(True, monkeypatch) == [1]
        assert not free.is_set()
    finally:
        free.set()
        logging.getLogger("quiesce.kafka").removeHandler(stuck)
