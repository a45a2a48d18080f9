"""The order service's own tables."""

from typing import Any, TypeAlias

import asyncpg

from quiesce.errors import SchemaMissing
from quiesce.postgres import inbox_schema

Pool: TypeAlias = "asyncpg.Pool[Any]"

COMMAND = "python -m quiesce.examples.order_service.schema"

NAMES = ("orders", "product", "payment")
TABLES = """
CREATE TABLE IF NOT EXISTS orders (
    id              bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer        text        NOT NULL,
    total           numeric     NOT NULL CHECK (total >= 0),
    status          text        NOT NULL DEFAULT 'placed',
    created_at      timestamptz NOT NULL DEFAULT now()
);
-- An older table knows fewer of them.
ALTER TABLE orders DROP CONSTRAINT IF EXISTS orders_status_check;
ALTER TABLE orders ADD CONSTRAINT orders_status_check
    CHECK (status IN ('placed', 'expired', 'paying', 'paid', 'refused')) NOT VALID;
CREATE INDEX IF NOT EXISTS orders_placed ON orders (created_at) WHERE status = 'placed';
CREATE TABLE IF NOT EXISTS payment (
    order_id bigint      PRIMARY KEY REFERENCES orders,
    -- Made once, where it is decided to pay. Each attempt sends it.
    key      uuid        NOT NULL UNIQUE DEFAULT gen_random_uuid(),
    amount   numeric     NOT NULL,
    status   text        NOT NULL DEFAULT 'decided' CHECK (status IN ('decided', 'paid', 'refused')),
    attempts integer     NOT NULL DEFAULT 0,
    next_at  timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX IF NOT EXISTS payment_due ON payment (next_at) WHERE status = 'decided';
CREATE TABLE IF NOT EXISTS product (
    id      text    PRIMARY KEY,
    name    text    NOT NULL,
    price   numeric NOT NULL,
    version bigint  NOT NULL
);
"""


async def apply(connection: "asyncpg.Connection[Any]") -> None:
    """Creates what is missing, the inbox's tables among it. Safe to run twice, or from two places at once."""
    await inbox_schema.apply(connection)
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock(hashtext('order_service'))")
        await connection.execute(TABLES)


async def require(db: Pool) -> None:
    """Raises:
    SchemaMissing: the tables are not there. The message names the command.
    """
    if await db.fetchval("SELECT count(to_regclass(name)) < 3 FROM unnest($1::text[]) AS name", list(NAMES)):
        raise SchemaMissing(f"the order service's tables are missing. Run: {COMMAND}, with DATABASE_URL set")
    async with db.acquire() as connection:
        await inbox_schema.require(connection)


async def _main() -> None:
    import os

    from quiesce.postgres import schema

    dsn = os.environ.get("DATABASE_URL")
    if not dsn:
        raise SystemExit("DATABASE_URL: not set, takes a PostgreSQL URL")
    connection = await asyncpg.connect(dsn, timeout=10)
    try:
        await schema.apply(connection)
        await apply(connection)
    finally:
        await connection.close(timeout=5)
    print("the tables of the outbox, the inbox and the order service are there")  # noqa: T201 - a command


if __name__ == "__main__":
    import asyncio

    asyncio.run(_main())
