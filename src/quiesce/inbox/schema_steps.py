"""The inbox's tables as versioned steps of SQL. Read here, run by whoever has a connection."""

from quiesce.migrations import Tables

INBOX = Tables(
    part="inbox",
    package="quiesce.inbox",
    names=("quiesce_inbox_schema", "inbox_entry", "idempotency_key", "record_start"),
    main="inbox_entry",
    versions="quiesce_inbox_schema",
    drop=(
        "DROP TABLE IF EXISTS record_start, idempotency_key, inbox_entry, quiesce_inbox_schema",
        "DROP FUNCTION IF EXISTS inbox_mark(text, text[])",
    ),
    functions=("inbox_mark",),
)
"""Entries of consumers, idempotency keys of requests, starts of records."""

schema_missing = INBOX.missing
"""The error for a table or a column that is not there."""
