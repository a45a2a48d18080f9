"""Opening with patience, closing with a bound."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, TypeVar, cast

from quiesce.errors import QuiesceError, StartError
from quiesce.lifecycle.backoff import Backoff
from quiesce.lifecycle.deadline import Deadline
from quiesce.lifecycle.events import ResourceUnavailable
from quiesce.lifecycle.phases import Part
from quiesce.lifecycle.ports import Closed, Resource

T = TypeVar("T")

log = logging.getLogger("quiesce.supervisor")


class ContextResource(Generic[T]):
    """Any async context manager as a `Resource`.

    It is entered and left in one task of its own: many context managers, cancel scopes among them, must be
    left by the task that entered them, and the start-up function is over when the closing begins.
    """

    def __init__(self, manager: AbstractAsyncContextManager[T], name: str, part: Part) -> None:
        self.name = name
        self.part = part
        self._manager = manager
        self._holder: asyncio.Task[None] | None = None
        self._leave = asyncio.Event()

    async def open(self) -> T:
        opened: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._holder = asyncio.create_task(self._hold(opened), name=f"resource {self.name}")
        try:
            # Shielded: a cancelled wait must not mark the future as cancelled under the holder's hands.
            return await asyncio.shield(opened)
        except asyncio.CancelledError:
            self._holder.cancel()
            await asyncio.wait({self._holder}, timeout=1.0)
            raise

    async def close(self, deadline: Deadline) -> Closed:
        if self._holder is None:
            return Closed()
        self._leave.set()
        remaining = deadline.remaining(asyncio.get_running_loop().time())
        await asyncio.wait({self._holder}, timeout=remaining)
        if not self._holder.done():
            self._holder.cancel()
            return Closed(forced=True, detail="its exit took longer than its share of the time")
        self._holder.result()
        return Closed()

    async def _hold(self, opened: asyncio.Future[T]) -> None:
        try:
            async with self._manager as value:
                opened.set_result(value)
                await self._leave.wait()
        except BaseException as error:
            if opened.done():
                raise
            if isinstance(error, asyncio.CancelledError):
                opened.cancel()
                raise
            # Told to whoever opens it, and not a second time when it is closed.
            opened.set_exception(error)


def as_resource(thing: Any, name: str | None, part: Part | None) -> Resource[Any]:
    """What `s.open` was given, as a `Resource`.

    Raises:
        QuiesceError: it is neither a resource nor an async context manager.
    """
    if all(hasattr(thing, attribute) for attribute in ("open", "close", "part", "name")):
        return cast("Resource[Any]", thing)
    if isinstance(thing, AbstractAsyncContextManager):
        default = getattr(thing, "__name__", None) or type(thing).__name__.lstrip("_")
        return ContextResource(thing, name or default, part or Part.POOLS)
    raise QuiesceError(
        f"cannot open {thing!r}: it takes an async context manager, or an adapter with name, part, open and close"
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
            wait = min(backoff.wait(attempt), max(0.0, until - loop.time()))
            if loop.time() >= until:
                raise StartError(
                    f"{resource.name} was not available for {limit:g} s ({attempt} tries); the last answer: {error}"
                ) from error
            tell(ResourceUnavailable(resource.name, str(error), attempt, wait))
            await asyncio.sleep(wait)


async def close_bounded(resource: Resource[Any], deadline: Deadline) -> tuple[str, Closed]:
    """Closes and says how it went: `clean`, `forced` or `failed`. An error stops nobody else's closing."""
    try:
        closed = await resource.close(deadline)
    except Exception as error:
        log.exception("closing %s failed", resource.name)
        return "failed", Closed(detail=f"{type(error).__name__}: {error}")
    return ("forced" if closed.forced else "clean"), closed
