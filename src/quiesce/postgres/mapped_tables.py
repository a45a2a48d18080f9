"""Tables of others that an `OutboxTable` maps: commands do not know them, and say so rather than show nothing."""

from quiesce.postgres.driver import AnyConnection

# What `OutboxTable.preparation` makes beside such a table, under its own name or another.
_FIND = """
SELECT c.oid::regclass::text AS name FROM pg_class AS c
WHERE c.relkind = 'r' AND c.relname <> 'outbox_parked' AND c.relnamespace NOT IN ('pg_catalog'::regnamespace)
    AND ARRAY['event_id', 'position', 'key', 'state', 'reason', 'attempts', 'next_at', 'created_at']::name[] = (
        SELECT array_agg(a.attname ORDER BY a.attnum) FROM pg_attribute AS a
        WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    )
ORDER BY 1 LIMIT 5
"""


async def mapped_tables(connection: AnyConnection) -> str:
    """Says so where there are such, by the names of the tables beside them; empty else."""
    names = [row["name"] for row in await connection.fetch(_FIND)]
    if not names:
        return ""
    return (
        f"{', '.join(names)} belongs to a table that an `OutboxTable` maps; `quiesce outbox` does not look at such, "
        "see docs/how-to/use-an-existing-table.md"
    )
