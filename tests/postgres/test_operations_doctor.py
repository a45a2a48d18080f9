"""`doctor`: each fault is made for real, found, named, and gone again when it is mended."""

from collections.abc import AsyncIterator, Callable

import pytest
from operations_table import as_if_new, belongs_to, park, written
from pgbouncer import OpenPgBouncer

from quiesce.outbox.checks import Check, worst
from quiesce.postgres import connect, doctor, doctor_horizon, doctor_outbox, doctor_server, doctor_tables, schema
from quiesce.postgres.dead_letters import Selection
from quiesce.postgres.driver import Connection
from quiesce.postgres.operating import operating
from quiesce.postgres.outbox_status import status
from quiesce.postgres.pausing import pause
from quiesce.postgres.redrive import redrive
from quiesce.testing.postgres import LocalPostgres
from quiesce.testing.postgres_address import PostgresAddress

OwnPostgres = Callable[..., LocalPostgres]


@pytest.fixture
async def outbox(outbox_database: str) -> AsyncIterator[str]:
    async with as_if_new(outbox_database) as dsn:
        yield dsn


async def found(db: Connection, name: str) -> Check:
    (check,) = [check for check in await doctor.examine(db) if check.name == name]
    return check


async def test_a_healthy_outbox_has_nothing_bad(own_postgres: OwnPostgres) -> None:
    server = own_postgres(durable=True, settings={"full_page_writes": "on"})
    server.create_database("shop")
    server.execute(schema.show(), "shop")
    async with connect(server.dsn("shop")) as db:
        await belongs_to(db, "log")
        checks = await doctor.examine(db)
    assert worst(checks) == "ok", checks
    assert len({check.name for check in checks}) == len(checks) > 12
    assert not any(check.advice for check in checks)


async def test_tables_that_are_missing_or_old(bare: str) -> None:
    async with connect(bare) as db:
        assert (await found(db, "schema")).verdict == "bad"
        await schema.apply(db)
        assert (await found(db, "schema")).verdict == "ok"
        await db.execute("DELETE FROM quiesce_schema WHERE version = (SELECT max(version) FROM quiesce_schema)")
        old = await found(db, "schema")
        assert (old.verdict, old.advice) == ("bad", "Run: quiesce outbox schema apply")


async def test_a_missing_and_a_broken_index(outbox: str, db: Connection) -> None:
    transaction = db.transaction()
    await transaction.start()
    await db.execute("DROP INDEX outbox_event_waiting")
    await db.execute("UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'outbox_event_xid'::regclass")
    (check,) = await doctor_tables.tables(db)
    await transaction.rollback()
    assert check == Check("indexes", "bad", "missing: outbox_event_waiting; not valid: outbox_event_xid", check.advice)


async def test_autovacuum_that_is_off_or_lags(db: Connection) -> None:
    await db.execute("ALTER TABLE outbox_lane SET (autovacuum_enabled = off)")
    try:
        off = await found(db, "autovacuum")
        assert (off.verdict, off.found) == ("bad", "it is off for outbox_lane")
    finally:
        await db.execute("ALTER TABLE outbox_lane RESET (autovacuum_enabled)")


async def test_vacuum_that_lags(db: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_tables, "DEAD_LEAST", 5)
    monkeypatch.setattr(doctor_tables, "DEAD_SHARE", 0.0)
    await written(db, 40)
    await db.execute("VACUUM outbox_event")
    await db.execute("SELECT pg_stat_force_next_flush()")
    assert (await found(db, "autovacuum")).verdict == "ok"
    await db.execute("DELETE FROM outbox_event; SELECT pg_stat_force_next_flush()")
    lags = await found(db, "autovacuum")
    assert lags.verdict == "warn"
    assert "outbox_event has 40 dead row versions" in lags.found


async def test_a_table_that_somebody_dropped(db: Connection) -> None:
    transaction = db.transaction()
    await transaction.start()
    await db.execute("DROP TABLE outbox_control")
    check = await found(db, "outbox")
    await transaction.rollback()
    assert (check.verdict, "outbox_control" in check.found) == ("bad", True)


async def test_who_holds_xmin_is_named(outbox: str, db: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_horizon, "HELD_WARN", 0.0)
    monkeypatch.setattr(doctor_horizon, "HELD_BAD", 3600.0)
    async with connect(outbox) as forgotten:
        await forgotten.execute("SET application_name = 'nightly report'")
        async with forgotten.transaction(isolation="repeatable_read"):
            pid = await forgotten.fetchval("SELECT pg_backend_pid()")
            held = await found(db, "held xmin")
            assert held.verdict == "warn"
            assert f"session {pid} (postgres, nightly report, idle in transaction)" in held.found
            assert f"pg_terminate_backend({pid})" in held.advice
            assert f"session {pid}" in (await found(db, "idle in transaction")).found
            monkeypatch.setattr(doctor_horizon, "HELD_BAD", 0.0)
            assert (await found(db, "held xmin")).verdict == "bad"
        assert (await found(db, "held xmin")).verdict == "ok"
        # A transaction that holds nothing, as that of a relay which owns lanes, is no fault.
        await forgotten.execute("BEGIN; SELECT pg_advisory_xact_lock_shared(1, 2)")
        assert (await found(db, "held xmin")).verdict == "ok"
        assert (await found(db, "idle in transaction")).verdict == "ok"


async def test_prepared_transactions_and_forgotten_slots(
    own_postgres: OwnPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_horizon, "HELD_WARN", 0.0)
    server = own_postgres(settings={"max_prepared_transactions": "5", "wal_level": "logical"})
    server.create_database("shop")
    server.execute(schema.show(), "shop")
    async with connect(server.dsn("shop")) as db:
        assert (await found(db, "prepared transactions")).verdict == "ok"
        assert (await found(db, "replication slots")).found == "none"
        await db.execute("BEGIN; SELECT pg_current_xact_id(); PREPARE TRANSACTION 'half done'")
        prepared = await found(db, "prepared transactions")
        assert (prepared.verdict, "ROLLBACK PREPARED 'half done'" in prepared.advice) == ("warn", True)
        await db.execute("ROLLBACK PREPARED 'half done'")
        await db.execute("SELECT pg_create_physical_replication_slot('gone', true)")
        slot = await found(db, "replication slots")
        assert (slot.verdict, slot.found.startswith("nobody reads: gone (physical)")) == ("warn", True)
        assert slot.advice.endswith("pg_drop_replication_slot('gone')")
        # The fixture's server runs without fsync.
        assert (await found(db, "durability")).verdict == "bad"
        await db.execute("SELECT pg_drop_replication_slot('gone')")


@pytest.mark.parametrize(("apart", "verdict"), [(0.0, "ok"), (5.0, "warn"), (-5.0, "warn"), (120.0, "bad")])
async def test_clocks_that_are_apart(
    db: Connection, monkeypatch: pytest.MonkeyPatch, apart: float, verdict: str
) -> None:
    real = doctor_server._skewed
    monkeypatch.setattr(doctor_server, "_skewed", lambda skew, doubt: real(skew + apart, doubt))
    check = await found(db, "clock")
    assert check.verdict == verdict
    if apart:
        assert ("behind" if apart < 0 else "ahead of") in check.found


async def test_the_outbox_itself(db: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    await belongs_to(db, "row")
    ids = await written(db, 5)
    await park(db, ids[:2], "dead", mark=True, reason="too large")
    await park(db, ids[2:3], "retry", mark=True)
    await pause(db, said_by="anna", why="brokers move")
    await db.execute("UPDATE outbox_event SET created_at = now() - interval '100 seconds'")
    dead = await found(db, "dead letters")
    assert (dead.verdict, dead.found) == ("warn", "2: 2 × too large")
    assert (await found(db, "backlog")).verdict == "warn"
    assert "by anna: brokers move" in (await found(db, "paused")).found
    assert (await found(db, "set aside")).verdict == "ok"
    monkeypatch.setattr(doctor_outbox, "MANY_ASIDE", 1)
    assert (await found(db, "set aside")).verdict == "warn"
    await db.execute("UPDATE outbox_event SET created_at = now() - interval '1 hour'")
    assert (await found(db, "backlog")).verdict == "bad"


async def test_another_database_than_the_cursors_were_written_in(db: Connection) -> None:
    await belongs_to(db, "log")
    assert (await found(db, "same database")).verdict == "ok"
    await db.execute("UPDATE outbox_control SET system_identifier = 1, timeline = 7")
    check = await found(db, "same database")
    assert (check.verdict, check.advice) == ("bad", "Run: quiesce outbox rebase --dry-run")
    assert "cluster" in check.found
    assert "timeline" in check.found


async def test_lanes_without_an_owner_unevenly_shared_and_hot(
    outbox: str, db: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    await belongs_to(db, "log")
    assert (await found(db, "lanes")).verdict == "ok"
    await written(db, 40)
    free = await found(db, "lanes")
    assert (free.verdict, "nobody owns" in free.found) == ("bad", True)
    async with connect(outbox) as owner, owner.transaction():
        for lane in range(16):
            await owner.execute(f"SELECT pg_advisory_xact_lock('outbox_lane'::regclass::oid::int4, {lane})")
        await db.execute("UPDATE outbox_lane SET owner = CASE WHEN lane < 12 THEN 'one' ELSE 'other' END")
        uneven = await found(db, "lanes")
        assert (uneven.verdict, uneven.found) == ("warn", "unevenly shared: one: 12, other: 4")
        await db.execute("UPDATE outbox_lane SET owner = CASE WHEN lane < 8 THEN 'one' ELSE 'other' END")
        assert (await found(db, "lanes")).found == "16 of 16 owned, by 2 relays"
        monkeypatch.setattr(doctor_outbox, "HOT_LEAST", 10)
        for _ in range(3):
            await written(db, 40, "k")
        await db.execute(
            "INSERT INTO outbox_event (id, aggregate_id, topic, type) "
            "SELECT gen_random_uuid(), 'hot', 'orders', 'T' FROM generate_series(1, 500)"
        )
        hot = await found(db, "hot lane")
        assert hot.verdict == "warn"
        assert str(await db.fetchval("SELECT outbox_lane('hot')")) in hot.found


async def test_lanes_are_sixteen_and_an_event_beyond_them_is_told(db: Connection) -> None:
    """Somebody who wants 32 lanes changes the function: no relay would read them."""
    await belongs_to(db, "log")
    transaction = db.transaction()
    await transaction.start()
    await db.execute(
        "CREATE OR REPLACE FUNCTION outbox_lane(key text) RETURNS smallint LANGUAGE sql IMMUTABLE STRICT RETURN 31"
    )
    await written(db, 1)
    (beyond,) = [check for check in await doctor_outbox.outbox(db) if check.name == "lanes"]
    assert (beyond.verdict, "events stand in lane 31" in beyond.found) == ("bad", True)
    await db.execute("DELETE FROM outbox_lane WHERE lane = 3")
    (fewer,) = [check for check in await doctor_outbox.outbox(db) if check.name == "lanes"]
    assert (
        fewer.verdict,
        fewer.found.startswith("outbox_lane has 15 rows of 15 lanes, should have one of each of 16"),
    ) == ("bad", True)
    await transaction.rollback()


async def test_what_a_user_may_not_see_is_said_and_not_guessed(
    outbox: str, db: Connection, postgres: PostgresAddress
) -> None:
    name = f"poor_{outbox.rpartition('/')[2]}"
    await db.execute(f"CREATE ROLE {name} LOGIN")
    try:
        async with connect(outbox.replace("postgres@", f"{name}@")) as poor:
            checks = await doctor.examine(poor)
        told = {check.name: check for check in checks}
        assert "GRANT pg_read_all_stats" in told["other sessions"].advice
        assert told["schema"].verdict == "warn"
        assert "--grants operator=ROLE" in told["schema"].advice
        assert "may not be looked at" in told["schema"].found
    finally:
        await db.execute(f"DROP ROLE {name}")


async def test_the_topics_of_recent_events(db: Connection) -> None:
    await written(db, 3, "a", "orders")
    await park(db, await written(db, 3, "b", "bills"), "dead")
    assert await doctor.recent_topics(db) == ["bills", "orders"]


async def test_a_pooler_in_between_is_noticed(outbox: str, db: Connection, pgbouncer: OpenPgBouncer) -> None:
    assert (await found(db, "pooler")).found == "none in between"
    await belongs_to(db, "log")
    way = pgbouncer("transaction").dsn(outbox)
    async with operating(way) as through, operating(way) as beside:
        check = await found(through, "pooler")
        assert check.verdict == "warn"
        assert "PgBouncer" in check.found
        assert "never in statement mode" in check.advice
        # All else works through it, for two operators at once.
        assert "bad" not in {one.verdict for one in await doctor.examine(beside) if one.name != "durability"}
        await park(db, await written(db, 6), "dead")
        assert sum([done async for done in redrive(through, Selection(), said_by="me", piece=2)]) == 6
        assert (await status(beside)).parked["retry"] == 6


async def test_a_writer_whose_commits_wait_for_no_disk(own_postgres: OwnPostgres) -> None:
    server = own_postgres(durable=True, settings={"full_page_writes": "on"})
    server.execute(f"{schema.show()}; CREATE ROLE shop LOGIN; ALTER ROLE shop SET synchronous_commit = off")
    async with connect(server.dsn()) as db:
        lazy = await found(db, "durability")
        assert lazy.verdict == "warn"
        assert "synchronous_commit is off for role shop:" in lazy.found
        await db.execute("ALTER ROLE shop RESET synchronous_commit")
        assert (await found(db, "durability")).verdict == "ok"
