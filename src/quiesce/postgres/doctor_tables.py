"""Checks of the outbox's tables: their version, their indexes, and whether PostgreSQL keeps them clean."""

import re

from quiesce.outbox.checks import Check
from quiesce.outbox.schema_steps import NOT_FOR, OUTBOX, TABLES
from quiesce.postgres import migrating, schema
from quiesce.postgres.driver import Connection
from quiesce.postgres.mapped_tables import mapped_tables
from quiesce.postgres.waiting import recorded_store

_INDEX = re.compile(r"CREATE (?:UNIQUE )?INDEX IF NOT EXISTS (\w+)")

_INDEXES = """
SELECT i.relname AS name, x.indisvalid AND x.indisready AS usable
FROM pg_index AS x JOIN pg_class AS i ON i.oid = x.indexrelid JOIN pg_class AS c ON c.oid = x.indrelid
WHERE c.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = 'outbox_event'::regclass)
    AND c.relname = ANY ($1)
"""
_VACUUM = """
SELECT c.relname AS name, s.n_dead_tup AS dead, greatest(c.reltuples, 0)::bigint AS live,
    extract(epoch FROM clock_timestamp() - greatest(s.last_autovacuum, s.last_vacuum))::float8 AS since,
    coalesce('autovacuum_enabled=false' = ANY (c.reloptions) OR 'autovacuum_enabled=off' = ANY (c.reloptions), false)
        AS off
FROM pg_class AS c LEFT JOIN pg_stat_user_tables AS s ON s.relid = c.oid
WHERE c.oid = ANY (ARRAY['outbox_event', 'outbox_parked', 'outbox_lane']::regclass[])
"""
DEAD_SHARE = 0.2
DEAD_LEAST = 10_000
"""Dead row versions from which on vacuum lags: more than this share of the living, and at least so many."""


async def tables(db: Connection) -> list[Check]:
    """Whether they are there, at this package's version, with all their indexes."""
    version, latest = await schema.applied_version(db), schema.latest_version()
    if version < latest:
        if (foreign := await migrating.foreign(db, OUTBOX)) is not None:
            advice = "The log store and these checks know their own tables only; add ?search_path= where they are"
            return [Check("schema", "bad", foreign, advice)]
        told = f"version {version}, this package needs {latest}" if version else "there are none"
        beside = "" if version else await mapped_tables(db)
        return [Check("schema", "bad", "; ".join(filter(None, (told, beside))), "Run: quiesce outbox schema apply")]
    usable = {row["name"]: row["usable"] for row in await db.fetch(_INDEXES, list(TABLES))}
    wanted = {*_INDEX.findall(schema.show()), "outbox_event_pkey", "outbox_parked_pkey"}
    if "outbox_control_pkey" in usable and (store := await recorded_store(db)) is not None:
        wanted.discard(NOT_FOR[store])
    missing = sorted(wanted - usable.keys())
    broken = sorted(name for name, fine in usable.items() if not fine)
    if missing or broken:
        told = "; ".join(
            f"{what}: {', '.join(names)}" for what, names in (("missing", missing), ("not valid", broken)) if names
        )
        return [
            Check(
                "indexes",
                "bad",
                told,
                "`quiesce outbox schema show` has their SQL; drop what is not valid and create it CONCURRENTLY",
            )
        ]
    return [Check("schema", "ok", f"version {version}, all indexes are there")]


async def vacuum(db: Connection) -> list[Check]:
    """Tables that turn over all day are lost without autovacuum."""
    if "off" in (await db.fetchval("SHOW autovacuum"), await db.fetchval("SHOW track_counts")):
        return [
            Check(
                "autovacuum",
                "bad",
                "it is off for the whole server: reads grow slower with everything that was ever changed",
                "Set autovacuum = on and track_counts = on",
            )
        ]
    rows = await db.fetch(_VACUUM)
    if off := sorted(row["name"] for row in rows if row["off"]):
        return [
            Check(
                "autovacuum",
                "bad",
                f"it is off for {', '.join(off)}",
                f"ALTER TABLE {off[0]} RESET (autovacuum_enabled)",
            )
        ]
    behind = [row for row in rows if (row["dead"] or 0) > max(DEAD_LEAST, DEAD_SHARE * row["live"])]
    if behind:
        told = ", ".join(
            f"{row['name']} has {row['dead']:,} dead row versions to {row['live']:,} rows, last vacuumed "
            + ("never" if row["since"] is None else f"{row['since'] / 60:.0f} min ago")
            for row in behind
        )
        return [
            Check(
                "autovacuum",
                "warn",
                f"it lags: {told}",
                "Look at `held xmin` first; else raise autovacuum_vacuum_cost_limit, or autovacuum_max_workers",
            )
        ]
    return [Check("autovacuum", "ok", "on, and it keeps up")]
