"""The inbox's tables made by way of SQLAlchemy, beside the outbox's. How it is done is tested with the outbox."""

import uuid
from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from quiesce.errors import SettingsError
from quiesce.inbox.schema_steps import INBOX
from quiesce.postgres import connect
from quiesce.postgres.schema_differences import differences
from quiesce.sqlalchemy import (
    INBOX_TABLES,
    apply_inbox_schema,
    apply_outbox_schema,
    drop_inbox_schema,
    drop_outbox_schema,
    inbox_entry,
)
from quiesce.testing.postgres_address import PostgresAddress


@pytest.fixture
def bare(postgres: PostgresAddress) -> Iterator[str]:
    """The DSN of a database without any tables."""
    name = f"quiesce_bare_{uuid.uuid4().hex[:12]}"
    yield postgres.create_database(name)
    postgres.drop_database(name)


def names(connection: sa.Connection) -> set[str]:
    return set(sa.inspect(connection).get_table_names())


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
async def test_it_is_applied_once_and_again_and_as_it_should_be(bare: str, driver: str) -> None:
    engine = create_async_engine(bare.replace("postgresql://", f"postgresql+{driver}://"))
    for _ in range(2):
        async with engine.begin() as connection:
            assert await connection.run_sync(apply_inbox_schema) == INBOX.latest_version()
    async with engine.begin() as connection:
        assert await connection.run_sync(names) == INBOX_TABLES
        await connection.run_sync(apply_outbox_schema)
    await engine.dispose()
    async with connect(bare) as look:
        assert await differences(look, INBOX) == []
        assert await differences(look) == []


def test_a_revision_names_its_version_and_drops_only_what_is_empty(bare: str) -> None:
    engine = sa.create_engine(bare.replace("postgresql://", "postgresql+psycopg://"))
    with engine.begin() as connection:
        assert apply_inbox_schema(connection, to=1) == 1
        assert names(connection) == {"inbox_entry", "quiesce_inbox_schema"}
        with pytest.raises(SettingsError, match="to: got 99, takes a version from 1 to"):
            apply_inbox_schema(connection, to=99)
        apply_outbox_schema(connection)
    with engine.begin() as connection:
        inbox_entry(connection, "orders", "e1")
    with engine.begin() as connection:
        with pytest.raises(SettingsError, match="inbox_entry is not empty"):
            drop_inbox_schema(connection)
        drop_inbox_schema(connection, discard_marks=True)
        assert not names(connection) & INBOX_TABLES
        drop_inbox_schema(connection)
        assert "outbox_event" in names(connection), "the outbox's tables stay"
        drop_outbox_schema(connection)
    engine.dispose()


def test_in_a_script_nobody_can_look_whether_marks_would_be_lost() -> None:
    script = sa.create_mock_engine("postgresql+psycopg://", lambda *_: None)
    with pytest.raises(SettingsError, match="a script cannot look whether marks would be lost"):
        drop_inbox_schema(script)
