"""A database that does not know what text is: refused before a relay reads what it cannot."""

import uuid
from collections.abc import Iterator

import pytest
from their_tables import SEEDS, SEEDS_SQL

from quiesce.cli.main import main
from quiesce.errors import SettingsError
from quiesce.lifecycle.deadline import Deadline
from quiesce.lifecycle.report import ExitCode
from quiesce.outbox.ports import OutboxStore
from quiesce.postgres import OutboxLog, OutboxRows, connect, doctor, schema
from quiesce.testing.postgres_address import PostgresAddress

REFUSED = "SQL_ASCII.*ENCODING 'UTF8'"


@pytest.fixture
def ascii_database(postgres: PostgresAddress) -> Iterator[str]:
    name = f"quiesce_ascii_{uuid.uuid4().hex[:12]}"
    provider = "" if int(postgres.server_version().split(".")[0]) < 15 else "LOCALE_PROVIDER libc"
    postgres.execute(
        f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'SQL_ASCII' {provider} LC_COLLATE 'C' LC_CTYPE 'C'"
    )
    yield postgres.dsn(name)
    postgres.drop_database(name)


async def refuses(store: OutboxStore) -> None:
    with pytest.raises(SettingsError, match=REFUSED) as told:
        await store.open()
    assert "\n" not in str(told.value)
    await store.close(Deadline.never())


async def test_stores_and_doctor_say_so_where_the_tables_are_there(ascii_database: str) -> None:
    async with connect(ascii_database) as db:
        await db.execute(schema.show())
        checks = await doctor.examine(db)
    (check,) = [one for one in checks if one.name == "encoding"]
    assert check.verdict == "bad"
    await refuses(OutboxLog(ascii_database))
    await refuses(OutboxRows(ascii_database))


async def test_a_row_store_of_another_table_says_so(ascii_database: str) -> None:
    async with connect(ascii_database) as db:
        await db.execute(SEEDS_SQL)
        for statement in SEEDS.preparation().split(";\n"):
            if statement.strip():
                await db.execute(statement)
    store = OutboxRows(ascii_database, table=SEEDS)
    with pytest.raises(SettingsError, match="SQL_ASCII"):
        await store.open()
    await store.close(Deadline.never())


def test_no_tables_are_made_there(
    ascii_database: str, postgres: PostgresAddress, capsys: pytest.CaptureFixture[str]
) -> None:
    for flags in ([], ["--dry-run"]):
        assert main(["outbox", "schema", "apply", "--dsn", ascii_database, *flags]) == ExitCode.BAD_CONFIGURATION
        told = capsys.readouterr().err.strip()
        assert "SQL_ASCII" in told
        assert "\n" not in told
    name = ascii_database.rpartition("/")[2].partition("?")[0]
    assert postgres.execute("SELECT count(*) FROM pg_class WHERE relname LIKE 'outbox%'", name) == "0"
    postgres.execute(schema.show(), name)
    assert main(["outbox", "schema", "validate", "--dsn", ascii_database]) == ExitCode.FAILED
    assert "SQL_ASCII" in capsys.readouterr().out


async def test_a_database_in_another_encoding_is_fine(outbox: str) -> None:
    async with connect(outbox) as db:
        (check,) = [one for one in await doctor.examine(db) if one.name == "encoding"]
    assert (check.verdict, check.found) == ("ok", "UTF8")
