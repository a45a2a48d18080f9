"""The backlog that the relay's bench moves: filled once by the server itself, then copied for each run.

Event number n has the key `key-(n % keys)`, and its payload begins with n: so the topic tells whether order was kept.
"""

import asyncio
import contextlib
import uuid
from collections.abc import Iterator

import asyncpg

from quiesce.outbox.schema_steps import StoreKind
from quiesce.postgres import connect, schema
from quiesce.postgres.outbox_control import keep_to_store
from quiesce.testing.postgres_address import PostgresAddress

_FILL_BOUND = 180.0
_FILL_RATE = 5_000.0
"""Seconds for the first events, and events a second for the others. Far below what is measured."""

# A transaction of its own for each ten thousand, as if many writers had been there; in the tables of the product and
# in the plain one that the bare loops read: the same events, with ids as `OutboxEvent` makes them, but no lanes.
_FILL = """
INSERT INTO outbox_event (id, aggregate_id, topic, type, payload, created_at)
SELECT (
        lpad(to_hex(now.us / 1000), 12, '0') || '7' || lpad(to_hex((now.us % 1000) * 4096 / 1000), 3, '0') ||
        substr(replace(gen_random_uuid()::text, '-', ''), 17)
    )::uuid, 'key-' || (n % {keys}), '{topic}', 'OrderPlaced',
    convert_to(rpad(n || ' ', {payload}, 'x'), 'UTF8'), statement_timestamp()
FROM generate_series({first}, {last}) AS n
    CROSS JOIN LATERAL (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + 0 * n) AS now (us)
"""

_BARE = """
CREATE TABLE bare_event (
    position bigint PRIMARY KEY, id uuid NOT NULL, aggregate_id text NOT NULL, topic text NOT NULL, type text NOT NULL,
    payload bytea, dispatched_at timestamptz
);
CREATE TABLE bare_cursor (last bigint NOT NULL) WITH (fillfactor = 20);
INSERT INTO bare_cursor VALUES (0);
INSERT INTO bare_event SELECT position, id, aggregate_id, topic, type, payload FROM outbox_event;
CREATE INDEX bare_waiting ON bare_event (position) WHERE dispatched_at IS NULL;
"""


class Tables:
    """The databases of one run of the bench, on a server that it may create databases on."""

    def __init__(self, server: PostgresAddress, topic: str) -> None:
        self._server = server
        self._topic = topic
        # Of its own name, so that two of them do not meet on one server.
        self._prefix = f"bench_{uuid.uuid4().hex[:8]}"
        self._copies = 0
        self.template = f"{self._prefix}_filled"

    def empty(self) -> str:
        """A database with the tables and nothing in them. Returns its DSN."""
        dsn = self._server.create_database(f"{self._prefix}_empty")
        asyncio.run(_apply(dsn))
        return dsn

    def drop_empty(self) -> None:
        """Drops what `empty` made."""
        self._server.drop_database(f"{self._prefix}_empty")

    def fill(self, events: int, keys: int, payload: int, *, bare: bool = True, store: StoreKind | None = None) -> str:
        """Makes the template: `events` of `payload` bytes over `keys` keys. Returns its DSN.

        `bare`: with the plain table that the bare loops read. `store`: with the indexes of this kind of store only.
        """
        dsn = self._server.create_database(self.template)
        asyncio.run(_fill(dsn, self._topic, events, keys, payload, bare, store))
        return dsn

    @property
    def filled(self) -> str:
        """The DSN of the template itself, for one that is moved once."""
        return self._server.dsn(self.template)

    def drop(self) -> None:
        """Drops the template."""
        self._server.drop_database(self.template)

    @contextlib.contextmanager
    def copy(self) -> Iterator[str]:
        """A copy of the template for one run; dropped afterwards."""
        name = f"{self._prefix}_{self._copies}"
        self._copies += 1
        self._server.execute(f"CREATE DATABASE {name} TEMPLATE {self.template} STRATEGY FILE_COPY")
        try:
            yield self._server.dsn(name)
        finally:
            self._server.drop_database(name)


async def _apply(dsn: str) -> None:
    async with connect(dsn, name="bench") as connection:
        await schema.apply(connection)


async def _fill(
    dsn: str, topic: str, events: int, keys: int, payload: int, bare: bool, store: StoreKind | None
) -> None:
    bound = _FILL_BOUND + events / _FILL_RATE
    async with connect(dsn, name="bench") as connection, asyncio.timeout(bound):
        await schema.apply(connection)
        if store is not None:
            async with connection.transaction():
                await keep_to_store(connection, store, "bench")
        step = 10_000
        for first in range(0, events, step):
            last = min(first + step, events) - 1
            await connection.execute(_FILL.format(keys=keys, topic=topic, payload=payload, first=first, last=last))
        if bare:
            await connection.execute(_BARE)
        # Otherwise the first run would pay for the visibility map and the hint bits of all others.
        await connection.execute("VACUUM (ANALYZE, FREEZE)")
        with contextlib.suppress(asyncpg.InsufficientPrivilegeError):
            await connection.execute("CHECKPOINT")
