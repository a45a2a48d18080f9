"""What every adapter's `enqueue` says when it refuses: one wording for all drivers."""

from quiesce.errors import EnqueueError
from quiesce.outbox.schema_steps import OUTBOX

APPLY_COMMAND = OUTBOX.apply_command

schema_missing = OUTBOX.missing
"""The error for a table or a column that is not there."""

MISSING_STATES = frozenset({"42P01", "42703"})
"""SQLSTATEs of a table and of a column that is not there."""


def no_connection(given: object, takes: str) -> EnqueueError:
    """The error for what is no connection: a pool, an engine, one of another library. `takes` says what would be."""
    return EnqueueError(f"enqueue: got {type(given).__name__}, takes {takes}")


def no_transaction(advice: str) -> EnqueueError:
    """The error for a connection on which the event would be committed at once. `advice` says what to write."""
    return EnqueueError(
        "enqueue takes a connection with an open transaction: outside of one the event would not share the "
        f"fate of what it tells about. {advice}"
    )
