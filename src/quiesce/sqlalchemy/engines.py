"""SQLAlchemy's engines, as resources that close in time."""

import asyncio
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from sqlalchemy import URL, Engine, create_engine, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from quiesce.blocking import BlockingCall
from quiesce.errors import SettingsError, Unavailable
from quiesce.holders import Holder, detail
from quiesce.lifecycle.deadline import Deadline
from quiesce.lifecycle.phases import Part
from quiesce.lifecycle.ports import Closed
from quiesce.sqlalchemy.connecting import why_not_connected
from quiesce.sqlalchemy.watched import Watched

E = TypeVar("E")

_LOOK = 0.005
"""Seconds between two looks whether everything was given back."""

_INTERRUPT = 0.2
"""Seconds for the server to give up what still runs, past the deadline."""

_DISPOSE = 0.1
"""Seconds for closing what lies in the pool, where the deadline has left less."""


def open_engine(
    url: str | URL,
    *,
    name: str = "postgres",
    part: Part = Part.POOLS,
    connect_timeout: float = 5.0,
    **settings: Any,
) -> "EngineResource":
    """An engine for `await s.open(open_engine("postgresql+psycopg://..."))`, for code that runs in threads.

    `connect_timeout` bounds the first connection; seconds. `settings` go to `create_engine` as they are. `name`
    stands in reports and messages.

    Raises:
        SettingsError: the URL cannot be read, or its driver is not installed.
    """
    return EngineResource(_Given(url, name, part, connect_timeout, settings))


def open_async_engine(
    url: str | URL,
    *,
    name: str = "postgres",
    part: Part = Part.POOLS,
    connect_timeout: float = 5.0,
    **settings: Any,
) -> "AsyncEngineResource":
    """An engine for `await s.open(open_async_engine("postgresql+asyncpg://..."))`. For the rest see `open_engine`."""
    return AsyncEngineResource(_Given(url, name, part, connect_timeout, settings))


class _Given:
    """What both engines are made from."""

    def __init__(self, url: str | URL, name: str, part: Part, connect_timeout: float, settings: dict[str, Any]) -> None:
        try:
            self.url = make_url(url)
        except ArgumentError:
            # Not what it says: it quotes the URL, password and all.
            raise SettingsError(
                f"{name}: the URL cannot be read; takes postgresql+psycopg://user:password@host:5432/database"
            ) from None
        self.where = self.url.render_as_string(hide_password=True)
        self.name = name
        self.part = part
        self.timeout = connect_timeout
        self.settings = settings

    def made_by(self, create: Callable[..., Any], **more: Any) -> Any:
        try:
            return create(self.url, **self.settings, **more)
        except ImportError as error:
            raise SettingsError(f"{self.name}: {self.where} needs a driver that is not installed: {error}") from error
        except (ArgumentError, TypeError) as error:
            raise SettingsError(f"{self.name}: {self.where} takes other settings: {error}") from error


class _Engines(Generic[E]):
    """What both kinds have in common. The engine is made by `open` and gone with `close`."""

    def __init__(self, given: _Given) -> None:
        self.name = given.name
        self.part = given.part
        self._given = given
        self._engine: E | None = None
        self._watched: Watched | None = None

    def holders(self) -> list[tuple[str, str]]:
        """Who has not given back a connection: the name of the task, and where it took it.

        Also while the engine closes and after that: the report is written last, and names who never let go.
        """
        return [] if self._watched is None else self._watched.holders.tasks()

    async def close(self, deadline: Deadline) -> Closed:
        """Waits until every connection was given back, and closes them; past the deadline cuts those that are left.

        `dispose` alone closes only what lies in the pool at that moment. What runs past the deadline is cancelled on
        the server, and what is held is cut; a thread that waits for an answer on it gets an error. `detail` names
        who held it. From then on the engine refuses, with `IntakeClosed`. Safe to call twice.
        """
        engine, self._engine = self._engine, None
        watched = self._watched
        if engine is None or watched is None:
            return Closed()
        held: list[Holder] = []
        try:
            await _until(lambda: not watched.holders.now(), deadline)
            held = watched.holders.now()
            watched.shut()
            if await self._dispose(engine, max(_DISPOSE, _left(deadline))) and not watched.open():
                return Closed()
            await self._interrupt(watched)
        finally:
            # Also when we are cancelled.
            watched.cut()
        return Closed(forced=True, detail=_told(held))

    async def _dispose(self, engine: E, seconds: float) -> bool:
        """Closes what lies in the pool; whether that was over in time."""
        raise NotImplementedError

    async def _interrupt(self, watched: Watched) -> None:
        """Has the server give up what still runs."""
        raise NotImplementedError

    def _opened(self, engine: E, watched: Watched) -> E:
        self._engine, self._watched = engine, watched
        return engine

    def _meaning(self, error: BaseException) -> BaseException:
        return why_not_connected(error, self.name, self._given.where) or error


class EngineResource(_Engines[Engine]):
    """A `Resource` whose product is a SQLAlchemy `Engine`. Its blocking calls run in threads of ours."""

    async def open(self) -> Engine:
        """Makes the engine and one connection.

        Raises:
            Unavailable: the server cannot be reached, is starting up, or has no connection left.
            SettingsError: the server refuses the user or has no such database.
        """
        engine: Engine = self._given.made_by(create_engine)
        watched = Watched(engine)
        probing = BlockingCall(f"quiesce opening {self.name}", lambda: engine.connect().close())
        try:
            if not await probing.wait(self._given.timeout):
                raise Unavailable(f"{self.name}: {self._given.where} did not answer in time")
            await probing.result()
        except BaseException as error:  # noqa: BLE001 - raised again, as itself or with its meaning
            watched.cut()
            BlockingCall(f"quiesce closing {self.name}", engine.dispose)
            raise self._meaning(error) from None
        return self._opened(engine, watched)

    async def _dispose(self, engine: Engine, seconds: float) -> bool:
        disposing = BlockingCall(f"quiesce closing {self.name}", engine.dispose)
        over = await disposing.wait(seconds)
        if over:
            await disposing.result()
        return over

    async def _interrupt(self, watched: Watched) -> None:
        interrupting = BlockingCall(f"quiesce cancelling {self.name}", lambda: watched.interrupt_sync(_INTERRUPT))
        await interrupting.wait(_INTERRUPT)


class AsyncEngineResource(_Engines[AsyncEngine]):
    """A `Resource` whose product is a SQLAlchemy `AsyncEngine`."""

    async def open(self) -> AsyncEngine:
        """Makes the engine and one connection. Raises the same as `EngineResource.open`."""
        engine: AsyncEngine = self._given.made_by(create_async_engine)
        watched = Watched(engine.sync_engine)
        try:
            async with asyncio.timeout(self._given.timeout):
                async with engine.connect():
                    pass
        except BaseException as error:  # noqa: BLE001 - raised again, as itself or with its meaning
            watched.cut()
            await engine.dispose(close=False)
            raise self._meaning(error) from None
        return self._opened(engine, watched)

    async def _dispose(self, engine: AsyncEngine, seconds: float) -> bool:
        disposing = asyncio.ensure_future(engine.dispose())
        await asyncio.wait({disposing}, timeout=seconds)
        over = disposing.done()
        if over:
            disposing.result()
        else:
            disposing.cancel()
        return over

    async def _interrupt(self, watched: Watched) -> None:
        await watched.interrupt(_INTERRUPT)


def _left(deadline: Deadline) -> float:
    return deadline.remaining(time.monotonic())


async def _until(holds: Callable[[], bool], deadline: Deadline) -> None:
    while not holds():
        left = _left(deadline)
        if left <= 0:
            return
        await asyncio.sleep(min(_LOOK, left))


def _told(held: list[Holder]) -> str:
    return detail(held) if held else "the server did not answer the goodbye"
