"""Whether another table can be worked on by the row store, and what its columns are in the statements.

What would break a promise in silence is refused here, once, when the store opens: a position that sessions hoard, an
event without a key, two events of one id.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import NAMESPACE_URL, UUID, uuid5

from quiesce.errors import SettingsError
from quiesce.postgres.driver import AnyConnection
from quiesce.postgres.encoding import wrong_encoding
from quiesce.postgres.row_look import PREPARE, Look
from quiesce.postgres.row_positions import array
from quiesce.postgres.row_statements import RowStatements, statements
from quiesce.postgres.row_table import OutboxTable

_TABLE = """
SELECT c.oid, c.relkind, n.nspname, current_database() AS database
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE c.oid = to_regclass($1)
"""
_CANONICAL = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class Mapped:
    """A table that was looked at."""

    statements: RowStatements
    namespace: UUID
    native_ids: bool
    """Whether its ids are UUIDs as they come."""

    async def read(self, connection: AnyConnection, rows: Sequence[Any]) -> Sequence[Any]:
        """The rows of a claim: without the events that died meanwhile, and with a UUID, as text, as each event's id."""
        taken = [row[0] for row in rows if row[1] is not None]
        if self.statements.buried is not None and taken:
            buried = {row[0] for row in await connection.fetch(self.statements.buried, array(taken))}
            rows = [row for row in rows if row[0] not in buried] if buried else rows
        if self.native_ids:
            return rows
        return [(row[0], None if row[1] is None else str(self.event_id(row[1])), *row[2:]) for row in rows]

    def event_id(self, text: str) -> UUID:
        """The same for the same event, whoever computes it and whenever."""
        return UUID(text) if _CANONICAL.fullmatch(text) else uuid5(self.namespace, text)


async def mapped(connection: AnyConnection, table: OutboxTable, name: str) -> Mapped:
    """Looks at the table.

    Raises:
        SettingsError: it is not there, or cannot keep what the row store promises. The message says all that is
            wrong.
    """
    found = await connection.fetchrow(_TABLE, table.quoted)
    if found is None:
        raise SettingsError(f"{name}: got table {table.quoted}, takes one that exists, in the search_path or `schema`")
    if found["relkind"] != b"r":
        raise SettingsError(f"{name}: got {table.quoted}, takes a plain table: no view, no partitions")
    look = await Look.at(connection, table, found["oid"])
    columns = look.mapping()
    wrong = look.wrong + await _parked(connection, table)
    if (told := await wrong_encoding(connection)) is not None:
        wrong.append(told)
    if wrong:
        raise SettingsError(f"{name}: {table.quoted} cannot be worked on: {'; '.join(wrong)}")
    place = "/".join((found["database"], found["nspname"], table.name))
    return Mapped(statements(columns), uuid5(NAMESPACE_URL, f"quiesce:{place}"), look.type_of("id") == "uuid")


async def _parked(connection: AnyConnection, table: OutboxTable) -> list[str]:
    """What is wrong with the table of what was set aside."""
    found = await connection.fetchval("SELECT to_regclass($1)::oid", table.quoted_parked)
    if found is None:
        return [f"there is no table {table.quoted_parked}; {PREPARE}"]
    look = await Look.at(connection, table, found)
    needs = {"event_id", "position", "key", "state", "reason", "attempts", "next_at", "created_at"}
    missing = sorted(needs - look.columns.keys())
    if missing:
        return [f"{table.quoted_parked} has no {', '.join(missing)}; {PREPARE}"]
    return [] if look.is_unique("event_id") else [f"event_id of {table.quoted_parked} is not unique"]
