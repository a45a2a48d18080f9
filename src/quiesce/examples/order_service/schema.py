"""The order service's own tables."""

from typing import Any, TypeAlias

import asyncpg

from quiesce.errors import SchemaMissing

Pool: TypeAlias = "asyncpg.Pool[Any]"

COMMAND = "python -m quiesce.examples.order_service.schema"

TABLES = """
CREATE TABLE IF NOT EXISTS orders (
    id              bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer        text        NOT NULL,
    total           numeric     NOT NULL CHECK (total >= 0),
    status          text        NOT NULL DEFAULT 'placed' CHECK (status IN ('placed', 'expired')),
    idempotency_key text        UNIQUE,
    created_at      timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX IF NOT EXISTS orders_placed ON orders (created_at) WHERE status = 'placed';
CREATE TABLE IF NOT EXISTS product (
    id      text    PRIMARY KEY,
    name    text    NOT NULL,
    price   numeric NOT NULL,
    version bigint  NOT NULL
);
"""


async def apply(connection: "asyncpg.Connection[Any]") -> None:
    """Creates what is missing. Safe to run twice, or from two places at once."""
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock(hashtext('order_service'))")
        await connection.execute(TABLES)


async def require(db: Pool) -> None:
    """Raises:
    SchemaMissing: the tables are not there. The message names the command.
    """
    if await db.fetchval("SELECT to_regclass('orders') IS NULL OR to_regclass('product') IS NULL"):
        raise SchemaMissing(f"the order service's tables are missing. Run: {COMMAND}, with DATABASE_URL set")


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
    print("the tables of the outbox and of the order service are there")  # noqa: T201 - a command


if __name__ == "__main__":
    import asyncio

    asyncio.run(_main())
