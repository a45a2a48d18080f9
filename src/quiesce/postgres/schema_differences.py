"""What differs between the tables that are there and those that this package's migrations make.

Nothing is written down twice: the migrations are run in a schema of their own, in a transaction that is rolled back,
and both are described by the same queries. What the user added (an index, a column that may stay empty) is no
difference, nor is an index that is missing where the kind of store that runs the tables has no use for it.
"""

import re
import secrets
from collections.abc import Mapping
from typing import Any

import asyncpg

from quiesce.errors import SettingsError
from quiesce.migrations import Tables
from quiesce.outbox.schema_steps import NOT_FOR, OUTBOX
from quiesce.postgres import migrating
from quiesce.postgres.driver import AnyConnection
from quiesce.postgres.encoding import MOVE, wrong_encoding
from quiesce.postgres.operating import short_transaction
from quiesce.postgres.waiting import recorded_store

_COLUMNS = """
SELECT format('column %s.%s', c.relname, a.attname) AS name, concat_ws(' ',
    format_type(a.atttypid, a.atttypmod),
    CASE WHEN a.attnotnull THEN 'NOT NULL' END,
    CASE a.attidentity WHEN 'a' THEN 'IDENTITY ALWAYS' WHEN 'd' THEN 'IDENTITY BY DEFAULT' END,
    CASE WHEN a.attgenerated = 's' THEN 'GENERATED' WHEN a.attgenerated <> '' THEN 'GENERATED VIRTUAL' END,
    'DEFAULT ' || pg_get_expr(d.adbin, d.adrelid),
    (SELECT format('CACHE %s INCREMENT %s%s', s.seqcache, s.seqincrement, CASE WHEN s.seqcycle THEN ' CYCLE' END)
     FROM pg_depend AS dep JOIN pg_sequence AS s ON s.seqrelid = dep.objid
     WHERE dep.refobjid = c.oid AND dep.refobjsubid = a.attnum AND dep.deptype = 'i'
        AND dep.classid = 'pg_class'::regclass AND dep.refclassid = 'pg_class'::regclass)
) AS is,
    a.attnotnull AND d.adbin IS NULL AND a.attidentity = '' AS blocks
FROM pg_class AS c
JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN pg_attrdef AS d ON d.adrelid = c.oid AND d.adnum = a.attnum
WHERE c.relnamespace = $1::text::regnamespace AND c.relname = ANY ($2) AND c.relkind IN ('r', 'p')
"""
_TABLES = """
SELECT format('table %s', relname) AS name, concat_ws(' ',
    CASE relkind WHEN 'r' THEN 'table' ELSE 'no plain table' END,
    CASE relpersistence WHEN 'u' THEN 'UNLOGGED' END
) AS is, false AS blocks
FROM pg_class
WHERE relnamespace = $1::text::regnamespace AND relname = ANY ($2) AND relkind IN ('r', 'p', 'v', 'f', 'm')
"""
# Without those for NOT NULL, which the columns tell on every version.
_CONSTRAINTS = """
SELECT format('constraint on %s: %s', c.relname, pg_get_constraintdef(k.oid)) AS name,
    CASE WHEN k.convalidated THEN 'valid' ELSE 'NOT VALID' END AS is, false AS blocks
FROM pg_constraint AS k JOIN pg_class AS c ON c.oid = k.conrelid
WHERE c.relnamespace = $1::text::regnamespace AND c.relname = ANY ($2) AND k.contype IN ('p', 'u', 'c', 'x')
"""
_INDEXES = """
SELECT format('index %s', i.relname) AS name, concat_ws(' ',
    regexp_replace(
        regexp_replace(pg_get_indexdef(i.oid), '^CREATE (UNIQUE )?INDEX \\S+ ON ', '\\1'),
        ' WITH \\(fillfactor=[^)]*\\)', ''
    ),
    CASE WHEN NOT x.indisvalid THEN '(INVALID)' END
) AS is, x.indisunique AND x.indislive AS blocks
FROM pg_index AS x JOIN pg_class AS i ON i.oid = x.indexrelid JOIN pg_class AS c ON c.oid = x.indrelid
WHERE c.relnamespace = $1::text::regnamespace AND c.relname = ANY ($2)
"""
_FUNCTIONS = """
SELECT format('function %s(%s)', p.proname, pg_get_function_arguments(p.oid)) AS name, concat_ws(' ',
    format_type(p.prorettype, NULL), CASE p.provolatile WHEN 'i' THEN 'IMMUTABLE' ELSE 'not immutable' END,
    CASE WHEN p.proisstrict THEN 'STRICT' END, coalesce(pg_get_function_sqlbody(p.oid), p.prosrc)
) AS is, false AS blocks
FROM pg_proc AS p WHERE p.pronamespace = $1::text::regnamespace AND p.proname = ANY ($2)
"""
_TRIGGERS = """
SELECT format('trigger %s on %s', t.tgname, c.relname) AS name, 'a trigger' AS is, true AS blocks
FROM pg_trigger AS t JOIN pg_class AS c ON c.oid = t.tgrelid
WHERE c.relnamespace = $1::text::regnamespace AND c.relname = ANY ($2) AND NOT t.tgisinternal AND t.tgenabled <> 'D'
"""
_WITH_TABLES = (_TABLES, _COLUMNS, _CONSTRAINTS, _INDEXES, _TRIGGERS)
_WHERE = "SELECT n.nspname FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE c.oid = $1::oid"

_WIDEST = 240
"""Characters of a part that are told: a function's body is long."""

Described = Mapping[str, tuple[str, bool]]
"""What each part is, and whether it is in the way of writers or relays where it should not be."""


async def differences(connection: AnyConnection, tables: Tables = OUTBOX) -> list[str]:
    """One line a difference; empty where the tables of one part are as they should be.

    Raises:
        SchemaMissing: there are no tables at all.
        SettingsError: the user may not create a schema in this database, for a moment.
    """
    found = await connection.fetchval("SELECT to_regclass($1)::oid", tables.main)
    if found is None:
        raise tables.missing()
    if (foreign := await migrating.foreign(connection, tables)) is not None:
        return [foreign]
    place: str = await connection.fetchval(_WHERE, found)
    told = await _versions(connection, tables)
    if tables is OUTBOX and (wrong := await wrong_encoding(connection)) is not None:
        told.append(f"{wrong}. {MOVE}")
    actual = await _describe(connection, tables, place)
    expected = await _expected(connection, tables)
    if "column outbox_control.store" in actual and (store := await recorded_store(connection)) is not None:
        expected = {name: part for name, part in expected.items() if name != f"index {NOT_FOR[store]}"}
    # Of a table that is missing, that is all there is to say.
    missing = {table for table in tables.names if f"table {table}" not in actual}
    of_missing = re.compile(rf"\b({'|'.join(missing)})\b") if missing else None
    for name, (should, _) in sorted(expected.items()):
        kind = name.split()[0]
        if name not in actual:
            if kind in ("table", "function") or not (of_missing and of_missing.search(f"{name} {should}")):
                told.append(f"{name}: missing, should be: {_shortened(should)}")
        elif actual[name][0] != should:
            told.append(_differs(name, actual[name][0], should))
    for name, (there, blocks) in sorted(actual.items()):
        if name not in expected and blocks:
            told.append(f"{name}: should not be there ({there}): it may refuse what has to be written")
    return told


def _differs(name: str, there: str, should: str) -> str:
    if max(len(there), len(should)) <= _WIDEST:
        return f"{name}: is: {there}; should be: {should}"
    pairs = enumerate(zip(there, should, strict=False))
    at = next((place for place, (one, other) in pairs if one != other), min(len(there), len(should)))
    there, should = (_shortened(text[max(0, at - 20) :]) for text in (there, should))
    return f"{name}: from character {at + 1} on, is: {there}; should be: {should}"


def _shortened(text: str) -> str:
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 1]}…"


async def _versions(connection: AnyConnection, tables: Tables) -> list[str]:
    applied = await migrating.applied_version(connection, tables)
    wanted = tables.latest_version()
    if applied < wanted:
        return [f"version {applied}: this package brings {wanted}. Run: {tables.apply_command}"]
    return []


async def _expected(connection: AnyConnection, tables: Tables) -> Described:
    scratch = f"quiesce_validate_{secrets.token_hex(4)}"
    transaction = connection.transaction()
    await transaction.start()
    try:
        await connection.execute(f"CREATE SCHEMA {scratch}")
        await connection.execute(f"SET LOCAL search_path = {scratch}; SET LOCAL client_min_messages = warning")
        await connection.execute(tables.show())
        return await _describe(connection, tables, scratch)
    except asyncpg.InsufficientPrivilegeError as error:
        raise SettingsError(
            f"database user: may not create a schema, in which the tables are made for comparison and thrown away "
            f"({error}). Takes a user who may CREATE in this database"
        ) from error
    finally:
        await transaction.rollback()


async def _describe(connection: AnyConnection, tables: Tables, place: str) -> Described:
    quoted = await connection.fetchval("SELECT quote_ident($1)", place)
    rows: list[Any] = []
    async with short_transaction(connection):
        # What is in the search path is told without its schema, so both are told alike.
        await connection.execute(f"SET LOCAL search_path = {quoted}")
        for query in _WITH_TABLES:
            rows += await connection.fetch(query, quoted, list(tables.names))
        rows += await connection.fetch(_FUNCTIONS, quoted, list(tables.functions))
    return {row["name"]: (" ".join(row["is"].split()).replace(f"{quoted}.", ""), row["blocks"]) for row in rows}
