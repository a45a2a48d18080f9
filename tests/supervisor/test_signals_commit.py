"""S7: a signal at every await, and at every line, of a real COMMIT. Server and client agree every time."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from quiesce.postgres import connect
from quiesce.postgres.driver import Connection
from quiesce.supervisor.signals import SignalLadder

pytestmark = pytest.mark.serial


class SignalledAt:
    """Awaits a coroutine, and raises SIGTERM when it waits for the `step`-th time (1 is the first)."""

    def __init__(self, coroutine: Coroutine[Any, Any, None], step: int) -> None:
        self._coroutine = coroutine
        self._step = step
        self.steps = 0

    def __await__(self) -> Generator[Any, None, None]:
        inner = self._coroutine.__await__()
        while True:
            try:
                waited = next(inner)
            except StopIteration:
                return
            self.steps += 1
            if self.steps == self._step:
                # The handler runs here, with the statement on its way to the server.
                signal.raise_signal(signal.SIGTERM)
            yield waited


@contextmanager
def signalled_at_line(number: int) -> Iterator[Callable[[], int]]:
    """Raises SIGTERM at the `number`-th line that runs inside, in the driver, the loop and the ladder alike."""
    lines = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal lines
        if event == "line":
            lines += 1
            if lines == number:
                signal.raise_signal(signal.SIGTERM)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield lambda: lines
    finally:
        sys.settrace(before)


@contextmanager
def ladder_of_ours() -> Iterator[tuple[SignalLadder, list[int]]]:
    """As in a service: installed, and attached to the loop."""
    ladder, steps = SignalLadder(debounce=3600), []
    ladder.install()
    ladder.attach(asyncio.get_running_loop(), lambda step, number: steps.append(step))
    try:
        yield ladder, steps
    finally:
        ladder.detach()
        ladder.restore()


@pytest.fixture
async def watcher(database: str) -> AsyncIterator[Connection]:
    """A connection beside the one that commits: it sees what the server has."""
    async with connect(database) as connection:
        await connection.execute("CREATE TABLE charge (number int PRIMARY KEY)")
        yield connection


async def charge(connection: Connection, number: int) -> None:
    async with connection.transaction():
        await connection.execute("INSERT INTO charge VALUES ($1)", number)


async def server_has(watcher: Connection, number: int) -> bool:
    return bool(await watcher.fetchval("SELECT count(*) FROM charge WHERE number = $1", number))


async def test_s7_a_signal_at_every_await_of_a_commit(database: str, watcher: Connection) -> None:
    async with connect(database) as connection:
        number = 0
        while True:
            number += 1
            with ladder_of_ours() as (ladder, steps):
                signalled = SignalledAt(charge(connection, number), number)
                await signalled  # that it returns is what the client knows
                assert await server_has(watcher, number)
                if signalled.steps < number:
                    assert ladder.received() == []
                    break
                await asyncio.sleep(0)
                assert ladder.received() == [signal.SIGTERM]
                assert steps == [1], "it reached the loop as a step, and not as an exception"
        # BEGIN, INSERT (prepared, then run) and COMMIT wait for the server at least once each.
        assert number > 3


async def test_s7_a_signal_at_every_line_of_a_commit(database: str, watcher: Connection) -> None:
    async with connect(database) as connection:
        await charge(connection, 0)
        number, hit = 0, 0
        while True:
            number += 1
            with ladder_of_ours() as (ladder, _):
                with signalled_at_line(number) as lines:
                    await charge(connection, number)
                assert await server_has(watcher, number)
                if lines() < number:
                    break
                hit += len(ladder.received())
        assert hit == number - 1, "every signal was taken"
        assert number > 50


async def test_s7_a_handler_that_raises_would_leave_server_and_client_apart(database: str, watcher: Connection) -> None:
    """What the sweeps above would see if anything were raised: they can tell the difference."""

    def leave(number: int, frame: object) -> None:
        sys.exit(0)

    async with connect(database) as connection:
        await charge(connection, 0)  # from now on the statement is prepared
        whole = SignalledAt(charge(connection, 1), 0)
        await whole
        before = signal.signal(signal.SIGTERM, leave)
        try:
            with pytest.raises(SystemExit):
                # The last wait is that for the answer to COMMIT.
                await SignalledAt(charge(connection, 2), whole.steps)
        finally:
            signal.signal(signal.SIGTERM, before)
        # The client knows of no commit, and yet there is one.
        async with asyncio.timeout(5):
            while not await server_has(watcher, 2):
                await asyncio.sleep(0.01)
        connection.terminate()
