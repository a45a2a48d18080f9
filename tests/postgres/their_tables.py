"""Tables of events that were there before: of the seeds' shape, and one whose every name needs quotes."""

import json
from dataclasses import dataclass

from quiesce.outbox.event import OutboxEvent
from quiesce.postgres import Constant, OutboxTable
from quiesce.postgres.driver import Connection

SEEDS = OutboxTable(name="outbox_event", position="position", type=Constant("Placed"))
SEEDS_SQL = """
CREATE TABLE outbox_event (
    id            uuid        PRIMARY KEY,
    aggregate_id  text        NOT NULL,
    topic         text        NOT NULL,
    payload       bytea,
    created_at    timestamptz NOT NULL DEFAULT now(),
    dispatched_at timestamptz
);
"""

ODD = OutboxTable(
    schema='Their "Own" Schema',
    name="Order",
    id="select",
    position="id",
    aggregate_id="Key; DROP",
    topic="to'pic",
    type="type",
    payload='pay"load',
    headers="headers $1",
    created_at="when",
    dispatched_at="done at",
    dead_at="dead at",
    parked="Set Aside",
)
ODD_SQL = """
CREATE SCHEMA "Their ""Own"" Schema";
CREATE DOMAIN "Their ""Own"" Schema".words AS varchar(80);
CREATE TABLE "Their ""Own"" Schema"."Order" (
    "select"     varchar(36) NOT NULL UNIQUE,
    id           serial      PRIMARY KEY,
    "Key; DROP"  "Their ""Own"" Schema".words NOT NULL,
    "to'pic"     varchar     NOT NULL,
    type         text        NOT NULL,
    "pay""load"  bytea,
    "headers $1" jsonb,
    "when"       timestamp   NOT NULL DEFAULT now(),
    "done at"    timestamp
);
"""


@dataclass(frozen=True)
class Shape:
    table: OutboxTable
    sql: str
    insert: str

    async def write(self, connection: Connection, *events: OutboxEvent) -> None:
        for one in events:
            values: list[object] = [str(one.id), one.aggregate_id, one.topic, one.encoded_payload()]
            if self.table.headers:
                values += [one.type, dict(one.headers)]
            await connection.execute(self.insert, *map(_sent, values))


def _sent(value: object) -> object:
    return json.dumps(value) if isinstance(value, dict) else value


SHAPES = {
    "seeds": Shape(
        SEEDS,
        SEEDS_SQL,
        "INSERT INTO outbox_event (id, aggregate_id, topic, payload) VALUES ($1::text::uuid, $2, $3, $4)",
    ),
    "odd": Shape(
        ODD,
        ODD_SQL,
        'INSERT INTO "Their ""Own"" Schema"."Order" '
        '("select", "Key; DROP", "to\'pic", "pay""load", type, "headers $1") '
        "VALUES ($1, $2, $3, $4, $5, $6)",
    ),
}

SHOP = OutboxTable(
    name="shop_events",
    id="id",
    position="id",
    aggregate_id="order_id",
    topic=Constant("or'd\\ers"),
    type=Constant("Changed"),
    payload="body",
    headers="meta",
    created_at="created_at",
)
SHOP_SQL = """
CREATE TABLE shop_events (
    id bigserial PRIMARY KEY, order_id integer NOT NULL, body {kind}, meta jsonb,
    created_at timestamptz DEFAULT now(), dispatched_at timestamptz
);
"""


async def prepare(connection: Connection, sql: str, table: OutboxTable) -> None:
    await connection.execute(sql)
    # CONCURRENTLY takes a statement of its own.
    for statement in table.preparation().split(";\n"):
        if statement.strip():
            await connection.execute(statement)
