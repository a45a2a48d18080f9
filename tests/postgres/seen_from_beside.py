"""What the server says of a pool's connections, asked on a connection beside it; and the calls of a thread."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from quiesce.blocking import BlockingCall
from quiesce.postgres.driver import Connection
from quiesce.testing.postgres import LocalPostgres

ON_THE_SERVER = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
    "AND backend_type = 'client backend'"
)


async def nothing_left(look: Connection, seconds: float = 1.0) -> None:
    end = time.monotonic() + seconds
    while left := await look.fetchval(ON_THE_SERVER):
        assert time.monotonic() < end, f"{left} left on the server"
        await asyncio.sleep(0.01)


async def runs(look: Connection, what: str) -> None:
    """Waits until the server runs such a statement."""
    end = time.monotonic() + 5
    while not await look.fetchval(
        "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND datname = current_database() "
        "AND query LIKE $1 AND pid <> pg_backend_pid()",
        f"%{what}%",
    ):
        assert time.monotonic() < end, f"{what} never ran"
        await asyncio.sleep(0.01)


async def only_who_asks_is_left(server: LocalPostgres) -> None:
    """On a whole server."""
    end = time.monotonic() + 3
    while server.execute("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'") != "1":
        assert time.monotonic() < end, "nothing is left but the connection that asks"
        await asyncio.sleep(0.02)


async def call(function: Callable[[], Any]) -> Any:
    """A blocking call, as a request handler in a thread makes it."""
    return await BlockingCall("request thread", function).result()
