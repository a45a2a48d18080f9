"""psycopg's pools, as resources that close in time."""

from typing import Any

from quiesce.lifecycle.phases import Part
from quiesce.psycopg.async_pool import AsyncPoolResource
from quiesce.psycopg.pool_settings import Settings
from quiesce.psycopg.sync_pool import PoolResource


def open_pool(
    dsn: str,
    *,
    name: str = "postgres",
    min_size: int = 1,
    max_size: int = 10,
    part: Part = Part.POOLS,
    connect_timeout: float = 5.0,
    **settings: Any,
) -> "AsyncPoolResource":
    """A `psycopg_pool.AsyncConnectionPool` for `await s.open(open_pool(dsn))`: opened first, closed last.

    `connect_timeout` bounds the opening of a connection and of the pool; seconds. `settings` go to the pool as they
    are. `name` stands in reports and messages.

    Raises:
        SettingsError: the sizes do not fit together, or the DSN cannot be read.
    """
    return AsyncPoolResource(Settings(dsn, name, min_size, max_size, part, connect_timeout, settings))


def open_sync_pool(
    dsn: str,
    *,
    name: str = "postgres",
    min_size: int = 1,
    max_size: int = 10,
    part: Part = Part.POOLS,
    connect_timeout: float = 5.0,
    **settings: Any,
) -> "PoolResource":
    """A `psycopg_pool.ConnectionPool`, for code that runs in threads. For the rest see `open_pool`."""
    return PoolResource(Settings(dsn, name, min_size, max_size, part, connect_timeout, settings))
