"""The tables: applied twice, at once, by an old package; and what the columns promise."""

import asyncio
import hashlib
import subprocess
import sys

import asyncpg
import pytest
from outbox_table import event, until, write

from quiesce.errors import SchemaMissing, SettingsError, Unavailable
from quiesce.outbox import schema_steps
from quiesce.postgres import connect, schema
from quiesce.postgres.driver import Connection
from quiesce.testing.postgres_address import PostgresAddress


async def test_it_is_applied_once_and_again(bare: str) -> None:
    async with connect(bare) as connection:
        assert await schema.applied_version(connection) == 0
        with pytest.raises(SchemaMissing, match="quiesce outbox schema apply"):
            await schema.require(connection)
        assert await schema.apply(connection) == schema.latest_version()
        await schema.require(connection)
        await write(connection, event())
        assert await schema.apply(connection) == schema.latest_version()
        assert await connection.fetchval("SELECT count(*) FROM outbox_event") == 1


async def test_many_processes_apply_it_at_once(bare: str) -> None:
    program = (
        "import asyncio, sys\n"
        "from quiesce.postgres import connect, schema\n"
        "async def main():\n"
        "    async with connect(sys.argv[1]) as connection:\n"
        "        print(await schema.apply(connection))\n"
        "asyncio.run(main())\n"
    )
    command = [sys.executable, "-c", program, bare]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for _ in range(3)]
    async with asyncio.timeout(30):
        told = await asyncio.gather(*(asyncio.to_thread(one.communicate) for one in running))
    assert [out for out, _ in told] == [f"{schema.latest_version()}\n"] * 3


async def test_many_connections_apply_it_at_once(bare: str) -> None:
    async def apply() -> int:
        async with connect(bare) as connection:
            return await schema.apply(connection)

    assert await asyncio.gather(*(apply() for _ in range(6))) == [schema.latest_version()] * 6


async def test_an_older_package_leaves_newer_tables_alone(outbox: str, db: Connection) -> None:
    newer = schema.latest_version() + 7
    async with db.transaction():
        await db.execute("INSERT INTO quiesce_schema (version, name) VALUES ($1, 'later')", newer)
        assert await schema.apply(db) == newer
        await schema.require(db)
        await db.execute("DELETE FROM quiesce_schema WHERE version = $1", newer)


async def test_it_is_one_transaction_and_the_callers_if_one_is_open(bare: str) -> None:
    async with connect(bare) as connection:
        transaction = connection.transaction()
        await transaction.start()
        await schema.apply(connection)
        await transaction.rollback()
        assert await schema.applied_version(connection) == 0
        assert await connection.fetchval("SELECT to_regclass('outbox_event')") is None


async def test_it_does_not_wait_for_ever_for_another(bare: str) -> None:
    async with connect(bare) as one, connect(bare) as other, one.transaction():
        await schema.apply(one)
        with pytest.raises(Unavailable, match=r"0\.05 s"):
            await schema.apply(other, lock_timeout=0.05)


async def test_who_waits_behind_it_gets_over_while_it_waits_for_a_reader(bare: str) -> None:
    """A row lock of a relay queues up behind the lock that a step waits for."""
    async with connect(bare) as deploy, connect(bare) as reader, connect(bare) as relay, connect(bare) as look:
        for step in schema_steps.migrations()[:5]:
            await deploy.execute(step.sql)
        reading = reader.transaction()
        await reading.start()
        await reader.execute("SELECT FROM outbox_lane")
        applying = asyncio.create_task(schema.apply(deploy, lock_timeout=30.0))

        async def waits() -> bool:
            return bool(await look.fetchval("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)"))

        await until(waits)
        async with asyncio.timeout(10.0):
            await relay.execute("UPDATE outbox_lane SET dispatched = 1")
        assert not applying.done()
        await reading.rollback()
        async with asyncio.timeout(10.0):
            assert await applying == schema.latest_version()


async def test_a_user_who_may_not_is_told(bare: str, postgres: PostgresAddress) -> None:
    name = bare.rpartition("/")[2]
    role = f"poor_{name}"
    postgres.execute(f"CREATE ROLE {role} LOGIN", name)
    try:
        async with connect(bare.replace("postgres@", f"{role}@")) as connection:
            with pytest.raises(SettingsError, match="quiesce outbox schema show"):
                await schema.apply(connection)
    finally:
        postgres.execute(f"DROP ROLE {role}", name)


def test_what_is_shown_is_what_is_applied(bare: str, postgres: PostgresAddress) -> None:
    name = bare.rpartition("/")[2]
    for _ in range(2):
        postgres.execute(schema.show(), name)
    assert postgres.execute("SELECT max(version) FROM quiesce_schema", name) == str(schema.latest_version())


async def test_tables_of_the_first_version_are_brought_up_with_what_is_in_them(bare: str) -> None:
    async with connect(bare) as connection:
        await connection.execute(schema.migrations()[0].sql)
        await write(connection, *(event(f"key {n}") for n in range(20)))
        with pytest.raises(SchemaMissing, match="its version is 1, this package needs"):
            await schema.require(connection)
        await schema.apply(connection)
        # Every lane begins below whatever is there.
        begun = "SELECT count(*) FROM outbox_lane WHERE last = 0 AND seen::text = '1:1:'"
        assert await connection.fetchval(begun) == 16
        assert await connection.fetchval("SELECT count(*) FROM outbox_event") == 20
        assert await connection.fetchval("SELECT count(*) FROM outbox_control WHERE store IS NULL") == 1


KEYS = ["order-1", "a", "back\\slash \\x41 \\", "ключ", "🙂", " ", "x" * 5000, *(f"key {n}" for n in range(150))]


async def test_a_lane_can_be_computed_anywhere(db: Connection) -> None:
    await write(db, *(event(key) for key in KEYS))
    lanes = await db.fetch("SELECT aggregate_id, lane FROM outbox_event")
    assert dict(map(tuple, lanes)) == {key: hashlib.sha256(key.encode()).digest()[0] % 16 for key in KEYS}
    assert {lane for _, lane in lanes} == set(range(16))


async def test_a_transaction_has_its_number_before_it_takes_a_place(db: Connection) -> None:
    # The relay's floor rests on it, and it follows from nothing but the order of two columns.
    async with db.transaction():
        await db.execute("""
            CREATE FUNCTION pg_temp.watched() RETURNS xid8 LANGUAGE plpgsql AS $$
            BEGIN
                PERFORM set_config('quiesce.seen', coalesce(
                    pg_sequence_last_value(pg_get_serial_sequence('outbox_event', 'position')), 0)::text, false);
                RETURN pg_current_xact_id();
            END $$;
            ALTER TABLE outbox_event ALTER xid SET DEFAULT pg_temp.watched();
        """)
        await db.execute(
            "INSERT INTO outbox_event (id, aggregate_id, topic, type) VALUES (gen_random_uuid(), 'k', 't', 'T')"
        )
        seen, position = await db.fetchrow(
            "SELECT current_setting('quiesce.seen')::bigint, max(position) FROM outbox_event"
        ) or (0, 0)
        assert seen < position
        await db.execute("ALTER TABLE outbox_event ALTER xid SET DEFAULT pg_current_xact_id()")


@pytest.mark.parametrize(
    "values",
    [
        "(gen_random_uuid(), '', 't', 'T', '{}')",
        "(gen_random_uuid(), 'k', '', 'T', '{}')",
        "(gen_random_uuid(), 'k', 't', '', '{}')",
        "(gen_random_uuid(), 'k', 't', 'T', '[]')",
        "(gen_random_uuid(), NULL, 't', 'T', '{}')",
    ],
)
async def test_plain_sql_cannot_write_what_no_relay_can_publish(db: Connection, values: str) -> None:
    with pytest.raises(asyncpg.IntegrityConstraintViolationError):
        await db.execute(f"INSERT INTO outbox_event (id, aggregate_id, topic, type, headers) VALUES {values}")


async def test_a_writer_needs_insert_only(outbox: str, db: Connection, postgres: PostgresAddress) -> None:
    role = f"writer_{outbox.rpartition('/')[2]}"
    await db.execute(f"CREATE ROLE {role} LOGIN; GRANT INSERT ON outbox_event TO {role}")
    try:
        async with connect(outbox.replace("postgres@", f"{role}@")) as writer:
            await write(writer, event())
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await writer.fetchval("SELECT count(*) FROM outbox_event")
    finally:
        await db.execute(f"REVOKE ALL ON outbox_event FROM {role}; DROP ROLE {role}")
    assert await db.fetchval("SELECT count(*) FROM outbox_event") == 1
