"""Names for asyncpg's classes. They are generic in its stubs and not at run time."""

from typing import TYPE_CHECKING, Any

import asyncpg

if TYPE_CHECKING:
    Connection = asyncpg.Connection[asyncpg.Record]
    Pool = asyncpg.Pool[asyncpg.Record]
    Proxy = asyncpg.pool.PoolConnectionProxy[Any]
    AnyConnection = asyncpg.Connection[Any] | Proxy
else:
    Connection = asyncpg.Connection
    Pool = asyncpg.Pool
    Proxy = asyncpg.pool.PoolConnectionProxy
    AnyConnection = Connection | Proxy
