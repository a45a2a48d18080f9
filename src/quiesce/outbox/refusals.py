"""What every adapter's `enqueue` says when it refuses: one wording for all drivers."""

from quiesce.errors import EnqueueError, SchemaMissing

APPLY_COMMAND = "quiesce outbox schema apply"

MISSING_STATES = frozenset({"42P01", "42703"})
"""SQLSTATEs of a table and of a column that is not there."""


def no_transaction(advice: str) -> EnqueueError:
    """The error for a connection on which the event would be committed at once. `advice` says what to write."""
    return EnqueueError(
        "enqueue takes a connection with an open transaction: outside of one the event would not share the "
        f"fate of what it tells about. {advice}"
    )


def schema_missing(detail: str = "") -> SchemaMissing:
    """The error for a table or a column that is not there."""
    told = f" ({' '.join(detail.split())})" if detail else ""
    return SchemaMissing(f"the outbox's tables are missing or too old{told}. Run: {APPLY_COMMAND}")
