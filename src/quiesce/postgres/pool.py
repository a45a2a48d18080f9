"""The application's pool, as a resource that closes in time."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg

from quiesce.errors import SettingsError
from quiesce.lifecycle.deadline import Deadline
from quiesce.lifecycle.phases import Part
from quiesce.lifecycle.ports import Closed
from quiesce.postgres.connections import APPLICATION, Connector, why_not_connected
from quiesce.postgres.driver import Pool, Proxy
from quiesce.postgres.dsn import redact_dsn
from quiesce.postgres.pool_holders import Holders

logger = logging.getLogger("quiesce.postgres")

Setup = Callable[[Proxy], Awaitable[None]]


def open_pool(
    dsn: str,
    *,
    name: str = "postgres",
    min_size: int = 1,
    max_size: int = 10,
    part: Part = Part.POOLS,
    connect_timeout: float = 5.0,
    command_timeout: float | None = 60.0,
    **settings: Any,
) -> "PoolResource":
    """A pool for `await s.open(open_pool(dsn))`: opened first, closed last.

    `connect_timeout` bounds each connection's opening, `command_timeout` each statement that names no timeout of
    its own; seconds. `settings` go to `asyncpg.create_pool` as they are. `name` stands in reports and messages.

    Raises:
        SettingsError: the sizes do not fit together.
    """
    if not 0 <= min_size <= max_size or max_size < 1:
        raise SettingsError(f"{name}: got min_size {min_size} and max_size {max_size}, takes 0 <= min_size <= max_size")
    limits = {
        "min_size": min_size,
        "max_size": max_size,
        "timeout": connect_timeout,
        "command_timeout": command_timeout,
    }
    return PoolResource(dsn, name, part, {**settings, **limits})


class PoolResource:
    """A `Resource` whose product is an `asyncpg.Pool`."""

    def __init__(self, dsn: str, name: str, part: Part, settings: dict[str, Any]) -> None:
        self.name = name
        self.part = part
        self._dsn = dsn
        self._settings = settings
        self._setup: Setup | None = settings.pop("setup", None)
        self._holders = Holders()
        self._cut: list[tuple[str, str]] = []
        self._pool: Pool | None = None

    def __repr__(self) -> str:
        return f"<PoolResource {self.name} {redact_dsn(self._dsn)}>"

    async def open(self) -> Pool:
        """Connects `min_size` connections.

        Raises:
            Unavailable: the server cannot be reached, is starting up, or has no connection left.
            SettingsError: the DSN is wrong, or the server refuses the user or has no such database.
        """
        options = {"connect": Connector(APPLICATION), **self._settings, "setup": self._note_holder}
        try:
            # The pool cleans up after itself when this fails or is cancelled.
            self._pool = await asyncpg.create_pool(self._dsn, **options)
        except Exception as error:
            meaning = why_not_connected(error, self.name, self._dsn)
            if meaning is None:
                raise
            # Without the cause: what asyncpg says of a bad DSN may hold a piece of its password.
            raise meaning from None
        return self._pool

    async def close(self, deadline: Deadline) -> Closed:
        """Waits until every connection was given back and closed; past the deadline cuts those that are left.

        `detail` names who held them. Afterwards the server ends its side: at once, or within a second where a
        statement is still running. Safe to call twice.
        """
        pool, self._pool = self._pool, None
        if pool is None:
            return Closed()
        closing = asyncio.ensure_future(pool.close())
        try:
            await asyncio.wait({closing}, timeout=deadline.remaining(time.monotonic()))
            if closing.done() and not closing.cancelled() and closing.exception() is None:
                return Closed()
            held, self._cut = self._holders.now(), self._holders.tasks()
        finally:
            # Also when we are cancelled. A cancelled close terminates what is left.
            if not closing.done():
                closing.cancel()
                pool.terminate()
        await asyncio.wait({closing}, timeout=1.0)
        return Closed(forced=True, detail=_detail(held, closing))

    def holders(self) -> list[tuple[str, str]]:
        """For each connection in use: the task that acquired it, and where and when. For the hang report.

        After the pool was cut: those who held one then. The report is written last, and names them.
        """
        return self._cut or self._holders.tasks()

    async def _note_holder(self, proxy: Proxy) -> None:
        self._holders.note(proxy)
        if self._setup is not None:
            await self._setup(proxy)


def _detail(held: list[str], closing: "asyncio.Future[None]") -> str:
    if held:
        return f"{len(held)} connection(s) not given back: " + "; ".join(held)
    error = closing.exception() if closing.done() and not closing.cancelled() else None
    if error is not None:
        return f"closing failed: {error!r}"
    return "the server did not answer the goodbye"
