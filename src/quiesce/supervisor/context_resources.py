"""Context managers and things that close, as resources: on the loop, or in a thread of ours where they block."""

import asyncio
import contextlib
import inspect
import threading
from collections.abc import Awaitable, Callable, Collection
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Generic, Protocol, TypeVar

from quiesce.blocking import BlockingCall
from quiesce.lifecycle.deadline import Deadline
from quiesce.lifecycle.phases import Part
from quiesce.lifecycle.ports import Closed
from quiesce.supervisor.where import place_of, top_of_thread

T = TypeVar("T")

CLOSING_METHODS = ("aclose", "close", "dispose")
"""What a thing that is neither a resource nor a context manager is closed by; the first that it has."""


class ClosesAsync(Protocol):
    def aclose(self) -> object: ...


class Closes(Protocol):
    def close(self) -> object: ...


class Disposes(Protocol):
    def dispose(self) -> object: ...


Closable = ClosesAsync | Closes | Disposes


_undone: set[asyncio.Task[Any]] = set()


def being_undone() -> Collection[asyncio.Task[Any]]:
    """The openings that were interrupted and have not ended: whoever waits for them names them."""
    return list(_undone)


class StillClosing(Exception):
    """A closer had its time and is still at it. Says where it is."""


class ContextResource(Generic[T]):
    """Any async context manager as a `Resource`.

    It is entered and left in one task of its own: many context managers, cancel scopes among them, must be
    left by the task that entered them, and the start-up function is over when the closing begins.
    """

    def __init__(self, manager: AbstractAsyncContextManager[T], name: str, part: Part) -> None:
        self.name = name
        self.part = part
        self._manager = manager
        self._holder: asyncio.Task[BaseException | None] | None = None
        self._leave = asyncio.Event()

    async def open(self) -> T:
        opened: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._holder = asyncio.create_task(self._hold(opened), name=f"resource {self.name}")
        try:
            # Shielded: a cancelled wait must not mark the future as cancelled under the holder's hands.
            return await asyncio.shield(opened)
        except asyncio.CancelledError:
            # Where it was open before the interruption came, it is left as in any closing, and not by an error; so is
            # one that opens all the same.
            self._leave.set()
            if not opened.done():
                self._holder.cancel()
            _undone.add(self._holder)
            self._holder.add_done_callback(_undone.discard)
            # What it undoes may need what was opened before it. Bounded by the service: at the end of the drain the
            # start is left where it is, and named.
            while not self._holder.done():
                try:
                    await asyncio.wait({self._holder})
                except asyncio.CancelledError:
                    self._holder.cancel()
            raise

    async def close(self, deadline: Deadline) -> Closed:
        if self._holder is None:
            return Closed()
        self._leave.set()
        remaining = deadline.remaining(asyncio.get_running_loop().time())
        await asyncio.wait({self._holder}, timeout=remaining)
        if not self._holder.done():
            place = place_of(self._holder)
            self._holder.cancel()
            # As long as our caller lets us: who eats the cancel is named by it.
            await asyncio.wait({self._holder})
            return Closed(forced=True, detail=f"its exit was cancelled at {place}")
        failure = self._holder.result()
        if failure is not None:
            raise failure
        return Closed()

    async def _hold(self, opened: asyncio.Future[T]) -> BaseException | None:
        """Returns what the exit raised. It must not leave this task: SystemExit would tear the loop down."""
        try:
            async with self._manager as value:
                opened.set_result(value)
                await self._leave.wait()
        except BaseException as error:  # noqa: BLE001 - told to whoever opens or closes it
            if opened.done():
                return error
            if isinstance(error, asyncio.CancelledError):
                opened.cancel()
            else:
                # Told to whoever opens it, and not a second time when it is closed.
                opened.set_exception(error)
        return None


class BlockingContextResource(Generic[T]):
    """A context manager that blocks, as a `Resource`: entered and left by one daemon thread of its own.

    A thread cannot be cancelled. One that overruns is left behind and named with its stack; neither the loop nor
    the interpreter's exit waits for it.
    """

    def __init__(self, manager: AbstractContextManager[T], name: str, part: Part) -> None:
        self.name = name
        self.part = part
        self._manager = manager
        self._holder: BlockingCall[None] | None = None
        self._leave = threading.Event()

    async def open(self) -> T:
        loop = asyncio.get_running_loop()
        opened: asyncio.Future[T] = loop.create_future()

        def tell(setter: Callable[[Any], None], outcome: object) -> None:
            if not opened.done():
                setter(outcome)

        def hold() -> None:
            entered = False
            try:
                with self._manager as value:
                    entered = True
                    loop.call_soon_threadsafe(tell, opened.set_result, value)
                    # Ends when the resource is closed; the thread is a daemon, should nobody close it.
                    self._leave.wait()
            except BaseException as error:
                if entered:
                    raise
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(tell, opened.set_exception, error)

        self._holder = BlockingCall(f"quiesce resource {self.name}", hold)
        try:
            return await opened
        except asyncio.CancelledError:
            # Whenever it has entered, it leaves at once; until then it may need what was opened before it. No further
            # cancel can hurry it. Bounded as above.
            self._leave.set()
            while not self._holder.over:
                with contextlib.suppress(asyncio.CancelledError):
                    await self._holder.end()
            raise

    async def close(self, deadline: Deadline) -> Closed:
        holder, self._holder = self._holder, None
        if holder is not None:
            self._leave.set()
            await _ended(holder, deadline)
        return Closed()


class ClosableResource(Generic[T]):
    """Something that is open already, as a `Resource`: closed by its `aclose()`, `close()` or `dispose()`.

    One that is not a coroutine function is called in a daemon thread of ours, as it may block.
    """

    def __init__(self, thing: T, method: str, name: str, part: Part) -> None:
        self.name = name
        self.part = part
        self._thing = thing
        self._close: Callable[[], Any] | None = getattr(thing, method)

    async def open(self) -> T:
        return self._thing

    async def close(self, deadline: Deadline) -> Closed:
        method, self._close = self._close, None
        if method is None:
            return Closed()
        if inspect.iscoroutinefunction(method):
            await method()
            return Closed()
        call = BlockingCall(f"quiesce closing {self.name}", method)
        answer = await _ended(call, deadline)
        if isinstance(answer, Awaitable):
            await answer
        return Closed()


def closing_method(thing: object) -> str | None:
    """The name of the method that closes this thing, if it has one."""
    return next((name for name in CLOSING_METHODS if callable(getattr(thing, name, None))), None)


async def _ended(call: BlockingCall[T], deadline: Deadline) -> T:
    """What the call returned. Raises `StillClosing`, with its stack, when the deadline comes first."""
    if not await call.wait(deadline.remaining(asyncio.get_running_loop().time())):
        raise StillClosing(f"still in a thread at {top_of_thread(call.thread)}")
    return await call.result()
