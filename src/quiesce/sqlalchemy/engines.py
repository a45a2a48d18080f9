"""SQLAlchemy's engines, as resources that close in time."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

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


class EngineResource:
    """A `Resource` whose product is a SQLAlchemy `Engine`. Its blocking calls run in threads of ours."""

    def __init__(self, given: _Given) -> None:
        self.name = given.name
        self.part = given.part
        self._given = given
        self._engine: Engine | None = None
        self._watched: Watched | None = None

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
            meaning = why_not_connected(error, self.name, self._given.where)
            raise (meaning or error) from None
        self._engine, self._watched = engine, watched
        return engine

    def holders(self) -> list[tuple[str, str]]:
        """Who holds a connection now: the name of the task, and where it took it."""
        return [] if self._watched is None else self._watched.holders.tasks()

    async def close(self, deadline: Deadline) -> Closed:
        """Waits until every connection was given back, and closes them; past the deadline cuts those that are left.

        `dispose` alone closes only what lies in the pool at that moment. What runs past the deadline is cancelled on
        the server, and what is held is cut; a thread that waits for an answer on it gets an error. `detail` names
        who held it. From then on the engine refuses, with `IntakeClosed`. Safe to call twice.
        """
        engine, self._engine = self._engine, None
        watched, self._watched = self._watched, None
        if engine is None or watched is None:
            return Closed()
        held: list[Holder] = []
        try:
            await _until(lambda: not watched.holders.now(), deadline)
            held = watched.holders.now()
            watched.shut()
            disposing = BlockingCall(f"quiesce closing {self.name}", engine.dispose)
            if await disposing.wait(max(_DISPOSE, _left(deadline))):
                await disposing.result()
                if not watched.open():
                    return Closed()
            interrupting = BlockingCall(f"quiesce cancelling {self.name}", lambda: watched.interrupt_sync(_INTERRUPT))
            await interrupting.wait(_INTERRUPT)
        finally:
            # Also when we are cancelled.
            watched.cut()
        return Closed(forced=True, detail=_told(held))


class AsyncEngineResource:
    """A `Resource` whose product is a SQLAlchemy `AsyncEngine`."""

    def __init__(self, given: _Given) -> None:
        self.name = given.name
        self.part = given.part
        self._given = given
        self._engine: AsyncEngine | None = None
        self._watched: Watched | None = None

    async def open(self) -> AsyncEngine:
        """Makes the engine and one connection.

        Raises:
            Unavailable: the server cannot be reached, is starting up, or has no connection left.
            SettingsError: the server refuses the user or has no such database.
        """
        engine: AsyncEngine = self._given.made_by(create_async_engine)
        watched = Watched(engine.sync_engine)
        try:
            async with asyncio.timeout(self._given.timeout):
                async with engine.connect():
                    pass
        except BaseException as error:  # noqa: BLE001 - raised again, as itself or with its meaning
            watched.cut()
            await engine.dispose(close=False)
            meaning = why_not_connected(error, self.name, self._given.where)
            raise (meaning or error) from None
        self._engine, self._watched = engine, watched
        return engine

    def holders(self) -> list[tuple[str, str]]:
        """Who holds a connection now: the name of the task, and where it took it."""
        return [] if self._watched is None else self._watched.holders.tasks()

    async def close(self, deadline: Deadline) -> Closed:
        """Waits until every connection was given back, and closes them; past the deadline cuts those that are left.

        See `EngineResource.close`.
        """
        engine, self._engine = self._engine, None
        watched, self._watched = self._watched, None
        if engine is None or watched is None:
            return Closed()
        held: list[Holder] = []
        try:
            await _until(lambda: not watched.holders.now(), deadline)
            held = watched.holders.now()
            watched.shut()
            disposing = asyncio.ensure_future(engine.dispose())
            await asyncio.wait({disposing}, timeout=max(_DISPOSE, _left(deadline)))
            if disposing.done():
                disposing.result()
                if not watched.open():
                    return Closed()
            disposing.cancel()
            await watched.interrupt(_INTERRUPT)
        finally:
            # Also when we are cancelled.
            watched.cut()
        return Closed(forced=True, detail=_told(held))


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
