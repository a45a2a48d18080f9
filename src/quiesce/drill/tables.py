"""What the tables say: the outbox's backlog while the drill runs, and everything for the audit afterwards."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection
from typing import Any

import asyncpg

from quiesce.drill.audit import OutboxRow
from quiesce.errors import Unavailable
from quiesce.postgres import connect
from quiesce.postgres.connections import CONNECTION_LOST
from quiesce.postgres.waiting import EVERY_EVENT, store_of

_TIMEOUT = 10.0
_TIMEOUT_OF_ALL = 60.0

# Dead letters are no backlog: nobody will publish them. The audit counts them as lost.
_BACKLOG = "SELECT count(*) FROM ({}) AS event WHERE NOT dispatched AND NOT dead"
OWED = "SELECT count(*) FROM orders WHERE status IN ('placed', 'paying')"
_ROWS = """
SELECT id::text, position, aggregate_id, type, dispatched FROM ({}) AS event WHERE topic = $1 ORDER BY position
"""
ORDERS = "SELECT id::text, status FROM orders"
_MARKED = "SELECT event_id FROM inbox_entry WHERE consumer = $1"
_VERSIONS = "SELECT id, version FROM product"


class Tables:
    """Reads the drill's database."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self.backlog = 0
        """Events that wait in the outbox, as of the last look."""

    async def watch(self, every: float = 1.0) -> None:
        """Keeps `backlog` up to date until cancelled. A database that is away is asked again."""
        while True:
            with contextlib.suppress(Unavailable):
                async with self._reading() as connection:
                    while True:
                        self.backlog = await _backlog(connection)
                        await asyncio.sleep(every)
            await asyncio.sleep(every)

    async def drained(
        self, within: Callable[[], float], consumer: str = "", published: Collection[str] = (), every: float = 0.1
    ) -> int:
        """Waits until no event waits, no order is yet to expire or to be paid, and `consumer` has marked all that was
        `published`, at most `within` seconds.

        `within` is asked again and again, since whoever waits may lose patience. Returns how many events
        still wait in the outbox.

        Raises:
            Unavailable: the database cannot be reached.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        async with self._reading() as connection:
            while True:
                # Asked in this order: an order that expires, or is paid, puts its event into the outbox.
                owed = await connection.fetchval(OWED, timeout=_TIMEOUT)
                self.backlog = await _backlog(connection)
                handled = not published or await _marked(connection, consumer) >= set(published)
                if (owed == 0 and self.backlog == 0 and handled) or loop.time() - began >= within():
                    return self.backlog
                await asyncio.sleep(every)

    async def read(self, topic: str) -> tuple[list[OutboxRow], dict[str, str]]:
        """The outbox's events of a topic, and the status of all orders by id, as of one instant.

        Raises:
            Unavailable: the database cannot be reached.
        """
        async with self._reading() as connection, connection.transaction(isolation="repeatable_read"):
            every = EVERY_EVENT[await store_of(connection)]
            rows = await connection.fetch(_ROWS.format(every), topic, timeout=_TIMEOUT_OF_ALL)
            orders = await connection.fetch(ORDERS, timeout=_TIMEOUT_OF_ALL)
        return [_row(row) for row in rows], {order["id"]: order["status"] for order in orders}

    async def products(self, consumer: str) -> tuple[set[str], dict[str, int]]:
        """The ids of the events that a consumer has marked, and the version of each product, as of one instant.

        Raises:
            Unavailable: the database cannot be reached.
        """
        async with self._reading() as connection, connection.transaction(isolation="repeatable_read"):
            marked = await _marked(connection, consumer)
            versions = await connection.fetch(_VERSIONS, timeout=_TIMEOUT)
        return marked, {row["id"]: row["version"] for row in versions}

    @contextlib.asynccontextmanager
    async def _reading(self) -> "AsyncIterator[asyncpg.Connection[Any]]":
        try:
            async with connect(self._dsn, name="database of the drill", timeout=_TIMEOUT) as connection:
                yield connection
        except CONNECTION_LOST as error:
            raise Unavailable(f"the database of the drill was lost: {str(error) or type(error).__name__}") from error


async def _backlog(connection: "asyncpg.Connection[Any]") -> int:
    every = EVERY_EVENT[await store_of(connection)]
    waiting: int = await connection.fetchval(_BACKLOG.format(every), timeout=_TIMEOUT)
    return waiting


async def _marked(connection: "asyncpg.Connection[Any]", consumer: str) -> set[str]:
    return {row["event_id"] for row in await connection.fetch(_MARKED, consumer, timeout=_TIMEOUT)}


def _row(row: Any) -> OutboxRow:
    return OutboxRow(row["id"], row["position"], row["aggregate_id"], row["type"], row["dispatched"])
