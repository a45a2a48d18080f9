"""Opening with patience, closing with a bound."""

import asyncio
import logging
from collections.abc import Callable, Collection
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, TypeVar, cast

from quiesce.errors import QuiesceError, StartError
from quiesce.lifecycle.backoff import Backoff
from quiesce.lifecycle.deadline import Deadline
from quiesce.lifecycle.events import ResourceUnavailable
from quiesce.lifecycle.phases import Part
from quiesce.lifecycle.ports import Closed, Resource
from quiesce.supervisor.context_resources import (
    BlockingContextResource,
    ClosableResource,
    ContextResource,
    StillClosing,
    closing_method,
)
from quiesce.supervisor.where import place_of

T = TypeVar("T")

log = logging.getLogger("quiesce.supervisor")

FORCING = 0.3
"""Seconds of a closer's time that it is not told of, where it has that many: to cut what did not close by itself,
and to say who held it, before the next closer's turn. Never more than a quarter of its time."""


def as_resource(thing: Any, name: str | None, part: Part | None) -> Resource[Any]:
    """What `s.open` was given, as a `Resource`.

    Raises:
        QuiesceError: it is none of the things that can be opened.
    """
    if all(hasattr(thing, attribute) for attribute in ("open", "close", "part", "name")):
        return cast("Resource[Any]", thing)
    # What `@contextmanager` makes remembers the function; its own class is the same for all.
    named = getattr(thing, "func", thing)
    name = name or getattr(named, "__name__", None) or type(thing).__name__.lstrip("_")
    part = part or Part.POOLS
    if isinstance(thing, AbstractAsyncContextManager):
        return ContextResource(thing, name, part)
    if isinstance(thing, AbstractContextManager):
        return BlockingContextResource(thing, name, part)
    method = closing_method(thing)
    if method is not None:
        return ClosableResource(thing, method, name, part)
    raise QuiesceError(
        f"cannot open {thing!r}: it takes an adapter with name, part, open and close, a context manager (async or "
        "not), or something with aclose(), close() or dispose()"
    )


async def open_with_patience(
    resource: Resource[T], limit: float, backoff: Backoff, tell: Callable[[ResourceUnavailable], None]
) -> T:
    """Opens; where the server is away, tries again for `limit` seconds and tells each try.

    Raises:
        StartError: still away after `limit` seconds.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + limit
    attempt = 0
    while True:
        attempt += 1
        try:
            return await resource.open()
        except QuiesceError as error:
            if not error.retryable:
                raise
            told = _told(resource.name, error)
            wait = min(backoff.wait(attempt), max(0.0, until - loop.time()))
            if loop.time() >= until:
                raise StartError(
                    f"{resource.name} was not available for {limit:g} s ({attempt} tries); the last answer: {told}"
                ) from error
            tell(ResourceUnavailable(resource.name, told, attempt, wait))
            await asyncio.sleep(wait)


def _told(name: str, error: Exception) -> str:
    """The error's text; whoever says it names the resource already."""
    return str(error).removeprefix(f"{name}: ")


async def close_bounded(resource: Resource[Any], deadline: Deadline) -> tuple[str, Closed]:
    """Closes and says how it went: `clean`, `forced`, `failed` or `overran`. Nothing that a closer raises stops the
    next one: not an error, not SystemExit, not a CancelledError of its own.

    The resource is told a deadline that is a little earlier, so that what it forces still belongs to its own time.
    """
    loop = asyncio.get_running_loop()
    kept = min(FORCING, deadline.remaining(loop.time()) / 4)
    task = loop.create_task(_outcome(resource, deadline.before(kept)), name=f"closing {resource.name}")
    try:
        await asyncio.wait({task}, timeout=deadline.before(kept / 4).remaining(loop.time()))
    finally:
        # Also when we are cancelled. The place is read before the cancel moves it.
        place = place_of(task)
        task.cancel("its time is over")
    if not task.done():
        _left_behind.add(task)
        task.add_done_callback(_left_behind.discard)
        return "overran", Closed(detail=f"still at {place}")
    return task.result()


_left_behind: set[asyncio.Task[tuple[str, Closed]]] = set()
"""A task that nobody refers to may be collected in the middle of what it does."""


def left_behind() -> Collection[asyncio.Task[Any]]:
    """The closings that did not end when they were cancelled."""
    return list(_left_behind)


async def _outcome(resource: Resource[Any], deadline: Deadline) -> tuple[str, Closed]:
    try:
        # One that keeps the contract loosely returns nothing.
        said: Closed | None = await resource.close(deadline)
    except StillClosing as error:
        return "overran", Closed(detail=str(error))
    except BaseException as error:  # SystemExit in a task would tear the loop down
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
            raise  # ours, at the end of its time: told by who cancelled it
        log.error("closing %s failed", resource.name, exc_info=error)
        return "failed", Closed(detail=f"{type(error).__name__}: {error}")
    closed = said if isinstance(said, Closed) else Closed()
    return ("forced" if closed.forced else "clean"), closed
