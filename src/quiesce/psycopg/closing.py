"""What closing a pool needs, whatever its kind."""

import asyncio
import time
import weakref
from collections.abc import Callable
from typing import Any

from quiesce.holders import Holder, Holders, detail
from quiesce.lifecycle.deadline import Deadline

_LOOK = 0.005
"""Seconds between two looks whether everything was given back: a pool tells nobody."""

CANCEL = 0.2
"""Seconds for the server to take the cancel of what still runs, past the deadline."""


def new_holders() -> Holders:
    return Holders("psycopg_pool", "psycopg", "quiesce.psycopg")


def open_yet(made: "weakref.WeakSet[Any]") -> bool:
    """Whether a connection is open: held by somebody, or in the hands of the pool's own workers."""
    return any(not connection.closed for connection in list(made))


def left(deadline: Deadline) -> float:
    return deadline.remaining(time.monotonic())


async def until(holds: Callable[[], bool], deadline: Deadline) -> None:
    while not holds():
        remaining = left(deadline)
        if remaining <= 0:
            return
        await asyncio.sleep(min(_LOOK, remaining))


def told(held: list[Holder]) -> str:
    return detail(held) if held else "the server did not answer while connections were being closed"
