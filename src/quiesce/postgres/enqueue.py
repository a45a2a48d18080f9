"""Writing an event in the caller's own transaction."""

from uuid import UUID

import asyncpg

from quiesce.errors import EnqueueError
from quiesce.outbox import MAX_EVENT_BYTES, OutboxEvent, statement
from quiesce.postgres import schema
from quiesce.postgres.driver import AnyConnection


async def enqueue(connection: AnyConnection, event: OutboxEvent, *, max_event_bytes: int = MAX_EVENT_BYTES) -> UUID:
    """Writes `event` into the outbox, in the transaction that is open on `connection`. Returns its id.

    The event is published if, and only if, that transaction commits. `connection` comes from asyncpg, or from a
    pool's `acquire()`. For order per aggregate, lock the aggregate (or write its row) before this call.

    Raises:
        EnqueueError: no transaction is open, or the event is one that could never be published. Nothing was
            sent to the database, so an open transaction goes on as it was.
        SchemaMissing: the table is not there. The message names the command that creates it.
        asyncpg.PostgresError: whatever else the database says, such as a unique violation for an id that
            was enqueued before.
    """
    sql, values = statement(event, max_event_bytes)
    if not connection.is_in_transaction():
        raise EnqueueError(
            "enqueue takes a connection with an open transaction: outside of one the event would not share the "
            "fate of what it tells about. Write `async with connection.transaction():` around both"
        )
    try:
        await connection.execute(sql, *values)
    except (asyncpg.UndefinedTableError, asyncpg.UndefinedColumnError) as error:
        raise schema.missing(str(error)) from error
    return event.id
