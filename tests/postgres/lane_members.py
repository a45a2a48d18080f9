"""Members that share the lanes of a test's outbox, and what is true of them together."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from quiesce.outbox.ports import Takeover
from quiesce.postgres import connect
from quiesce.postgres.driver import Connection
from quiesce.postgres.lanes import Lanes
from quiesce.testing.contracts.expectations import within

ALL = frozenset(range(16))

LOCK_CONNECTIONS = "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'quiesce: lanes of %'"
END_LOCKS = (
    f"SELECT pg_terminate_backend(pid) FROM ({LOCK_CONNECTIONS} AND datname = current_database() ORDER BY pid) AS locks"
)


class Member(Lanes):
    """Remembers what it lost. Nothing is ever being read from its lanes, unless `reading` says so."""

    def __init__(self, dsn: str, name: str = "outbox", *, asks: bool = False, **settings: Any) -> None:
        self.losses: list[frozenset[int]] = []
        self.takeovers: list[Takeover] = []
        self.reading: set[int] = set()
        busy = None if asks else lambda: self.reading
        super().__init__(
            dsn, name, on_lost=self.losses.append, busy=busy, on_takeover=self.takeovers.append, **settings
        )


Join = Callable[..., Member]
"""Makes a member; takes what `Lanes` takes after the DSN, or another DSN."""


@pytest.fixture
async def join(database: str) -> AsyncIterator[Join]:
    members: list[Member] = []

    def one(name: str = "outbox", *, dsn: str = database, **settings: Any) -> Member:
        members.append(Member(dsn, name, **settings))
        return members[-1]

    yield one
    await asyncio.gather(*(member.close(within(2.0)) for member in members))


@pytest.fixture
async def look(database: str) -> AsyncIterator[Connection]:
    """A connection beside the members, to look with."""
    async with connect(database) as connection:
        yield connection


def shared_out(members: Sequence[Lanes]) -> bool:
    """Whether every lane has an owner and nobody has more than another, but for one."""
    counts = [len(member.held) for member in members]
    owned = {lane for member in members for lane in member.held}
    return sum(counts) == len(ALL) and owned == ALL and max(counts) - min(counts) <= 1


async def eventually(condition: Callable[[], bool], bound: float = 3.0) -> float:
    """Waits until it holds and returns how long that took; fails after `bound` seconds."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() < began + bound, f"not within {bound:g} s"
        await asyncio.sleep(0.002)
    return time.monotonic() - began


async def tending(members: Sequence[Lanes], condition: Callable[[], bool], bound: float = 5.0) -> None:
    """As `eventually`, with the members' stores calling all the while."""
    end = time.monotonic() + bound
    while not condition():
        assert time.monotonic() < end, f"not within {bound:g} s"
        await asyncio.gather(*(member.tend() for member in members), return_exceptions=True)
        await asyncio.sleep(0.01)


@asynccontextmanager
async def never_two_owners(members: Sequence[Lanes]) -> AsyncIterator[None]:
    """Looks after every pause of the loop whether a lane has two owners."""

    async def watch() -> None:
        while True:
            owned = [lane for member in members for lane in member.held]
            assert len(owned) == len(set(owned)), f"two owners: {[dict(member.held) for member in members]}"
            await asyncio.sleep(0.001)

    watching = asyncio.create_task(watch())
    try:
        yield
        assert not watching.done(), watching.exception()
    finally:
        watching.cancel()
        await asyncio.wait({watching})
