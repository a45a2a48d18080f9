"""What is wrong with another table, and what its columns are in the statements of the row store."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from quiesce.postgres.driver import AnyConnection
from quiesce.postgres.row_statements import RowColumns
from quiesce.postgres.row_table import Constant, OutboxTable, literal, quoted

_COLUMNS = """
SELECT a.attname, a.attnum, a.attnotnull, quote_ident(a.attname) AS shown, b.typcategory::text AS category,
    format_type(b.oid, NULL) AS type,
    (SELECT format('CACHE %s INCREMENT BY %s%s', s.seqcache, s.seqincrement, CASE WHEN s.seqcycle THEN ' CYCLE' END)
     FROM pg_depend AS d JOIN pg_sequence AS s ON s.seqrelid IN (d.objid, d.refobjid)
     LEFT JOIN pg_attrdef AS f ON d.classid = 'pg_attrdef'::regclass AND f.oid = d.objid
     WHERE (f.adrelid = a.attrelid AND f.adnum = a.attnum AND d.refclassid = 'pg_class'::regclass)
        OR (d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass
            AND d.refobjid = a.attrelid AND d.refobjsubid = a.attnum AND d.deptype = 'i')
     LIMIT 1) AS sequence
FROM pg_attribute AS a JOIN pg_type AS t ON t.oid = a.atttypid
JOIN pg_type AS b ON b.oid = CASE t.typtype WHEN 'd' THEN t.typbasetype ELSE t.oid END
WHERE a.attrelid = $1::oid AND a.attnum > 0 AND NOT a.attisdropped
"""
_INDEXES = """
SELECT x.indkey[0]::int AS first, x.indnkeyatts AS keys, x.indisunique AS is_unique, m.amname AS method,
    pg_get_expr(x.indpred, x.indrelid) AS condition
FROM pg_index AS x JOIN pg_class AS i ON i.oid = x.indexrelid JOIN pg_am AS m ON m.oid = i.relam
WHERE x.indrelid = $1::oid AND x.indisvalid
"""

_NUMBERS = ("smallint", "integer", "bigint")
_TIMES = ("timestamp with time zone", "timestamp without time zone")
_IN_ORDER = "CACHE 1 INCREMENT BY 1"
# Of the relay's own: `id` and `type` it adds by itself.
_HEADERS = """(
    SELECT coalesce(jsonb_object_agg(h.key, h.value), '{{}}') FROM jsonb_each_text(
        CASE WHEN jsonb_typeof({0}) = 'object' THEN {0} ELSE '{{}}' END
    ) AS h WHERE h.value IS NOT NULL AND h.key NOT IN ('id', 'type')
)"""

PREPARE = "OutboxTable.preparation() gives the SQL"


@dataclass(slots=True)
class Look:
    table: OutboxTable
    columns: Mapping[str, Any]
    indexes: Sequence[Any]
    wrong: list[str] = field(default_factory=list)
    """All that breaks a promise, in words."""

    @classmethod
    async def at(cls, connection: AnyConnection, table: OutboxTable, oid: int) -> "Look":
        columns = {row["attname"]: row for row in await connection.fetch(_COLUMNS, oid)}
        return cls(table, columns, await connection.fetch(_INDEXES, oid))

    def type_of(self, part: str) -> str | None:
        column = self.columns.get(getattr(self.table, part))
        return None if column is None else column["type"]

    def mapping(self) -> RowColumns:
        table = self.table
        if {"lane", "xid", "dead_at", "position"} <= self.columns.keys():
            self.wrong.append("it is quiesce's own; leave `table` out")
        for part, column in table.columns().items():
            if column not in self.columns:
                self.wrong.append(
                    f"{part}: there is no column {quoted(column)}" + (f"; {PREPARE}" if part == "position" else "")
                )
        for part in ("id", "position", "aggregate_id", "topic", "type"):
            self._check(part, lambda column: column["attnotnull"], "takes a column that is NOT NULL")
        self._check("id", lambda column: _is(column, "uuid", *_NUMBERS, text=True), "takes a UUID, text or a number")
        self._check_position()
        self._check("aggregate_id", lambda column: _is(column, "uuid", *_NUMBERS, text=True), "takes text")
        for part in ("topic", "type"):
            self._check(part, lambda column: column["category"] == "E" or _is(column, text=True), "takes text")
        takes = ("bytea", "json", "jsonb")
        self._check("payload", lambda column: _is(column, *takes, text=True), "takes bytea, text, json or jsonb")
        self._check("headers", lambda column: _is(column, "jsonb"), "takes jsonb")
        for part in ("created_at", "dispatched_at", "dead_at"):
            self._check(part, lambda column: _is(column, *_TIMES), "takes a timestamp")
        for part in ("dispatched_at", "dead_at"):
            self._check(part, lambda column: not column["attnotnull"], "takes a column that may be NULL: it waits then")
        for part in dict.fromkeys((table.id, table.position)):
            if part in self.columns and not self.is_unique(part):
                self.wrong.append(f"{quoted(part)}: has no unique index of its own")
        if table.position in self.columns and not any(self._waiting(index) for index in self.indexes):
            self.wrong.append(
                f"there is no index on the events that wait, without which each claim reads all; {PREPARE}"
            )
        return RowColumns(
            table=table.quoted,
            parked=table.quoted_parked,
            position=f"e.{quoted(table.position)}",
            id=self._id(),
            key=f"e.{quoted(table.aggregate_id)}::text",
            topic=_text(table.topic),
            type=_text(table.type),
            payload=self._payload(),
            headers="NULL::jsonb" if table.headers is None else _HEADERS.format(f"e.{quoted(table.headers)}"),
            dispatched_at=quoted(table.dispatched_at),
            created_at=f"e.{quoted(table.created_at)}" if self._has_zone("created_at") else None,
            dead_at=None if table.dead_at is None else quoted(table.dead_at),
        )

    def _has_zone(self, part: str) -> bool:
        """Without one nobody knows how long ago a time was."""
        return self.type_of(part) == _TIMES[0]

    def is_unique(self, name: str) -> bool:
        """Whether no two rows, at least of those that wait, share it."""
        number = self.columns[name]["attnum"]
        return any(
            index["is_unique"]
            and (index["keys"], index["first"]) == (1, number)
            and (index["condition"] is None or (name == self.table.position and self._waiting(index)))
            for index in self.indexes
        )

    def _check(self, part: str, holds: Any, takes: str) -> None:
        given = getattr(self.table, part)
        column = None if given is None or isinstance(given, Constant) else self.columns.get(given)
        if column is not None and not holds(column):
            may = "" if column["attnotnull"] else ", which may be NULL"
            self.wrong.append(f"{part}: got {quoted(given)} {column['type']}{may}, {takes}")

    def _check_position(self) -> None:
        why = (
            "takes a whole number from a sequence. The time of a transaction says when it began and not when it had "
            "its turn, so no order per key follows from it"
        )
        self._check("position", lambda column: _is(column, *_NUMBERS), f"{why}; {PREPARE}")
        column = self.columns.get(self.table.position)
        if column is None or not _is(column, *_NUMBERS):
            return
        if column["sequence"] is None:
            self.wrong.append(f"position: got {quoted(self.table.position)}, which no sequence gives out; {why}")
        elif column["sequence"] != _IN_ORDER:
            self.wrong.append(
                f"position: got {quoted(self.table.position)} from a sequence with {column['sequence']}, takes "
                f"{_IN_ORDER}: sessions that hoard numbers give later events smaller ones"
            )

    def _waiting(self, index: Any) -> bool:
        """Whether a claim can walk it: those that wait, in the order of position."""
        names = [self.table.dispatched_at, *([self.table.dead_at] if self.table.dead_at else [])]
        shown = [self.columns[name]["shown"] for name in names if name in self.columns]
        if len(shown) < len(names) or self.table.position not in self.columns:
            return False
        tests = [f"({name} IS NULL)" for name in shown]
        accepted = {tests[0], f"({' AND '.join(tests)})", f"({' AND '.join(reversed(tests))})"}
        return (
            index["method"] == "btree"
            and index["first"] == self.columns[self.table.position]["attnum"]
            and index["condition"] in accepted
        )

    def _id(self) -> str:
        name = f"e.{quoted(self.table.id)}"
        if self.type_of("id") == "uuid":
            return name
        if self.type_of("id") in _NUMBERS and self.table.created_at is not None:
            # After a failover with loss numbers repeat; the two of them do not.
            return f"concat_ws('/', {name}::text, extract(epoch FROM e.{quoted(self.table.created_at)})::text)"
        return f"{name}::text"

    def _payload(self) -> str:
        name = f"e.{quoted(self.table.payload)}"
        return name if self.type_of("payload") == "bytea" else f"convert_to({name}::text, 'UTF8')"


def _is(column: Any, *types: str, text: bool = False) -> bool:
    return column["type"] in types or (text and column["category"] == "S")


def _text(given: str | Constant) -> str:
    return literal(given.text) if isinstance(given, Constant) else f"e.{quoted(given)}::text"
