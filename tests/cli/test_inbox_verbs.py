"""`quiesce inbox ...`: what each verb prints, for people and as JSON, what it refuses, and its status."""

import asyncio
import json
import uuid
from collections.abc import Callable, Iterator

import pytest

from quiesce.cli.main import main
from quiesce.inbox.schema_steps import INBOX
from quiesce.postgres import connect, inbox_entries
from quiesce.testing.postgres_address import PostgresAddress
from quiesce_pytest import MakeTopic

Ran = tuple[int, str, str]
Quiesce = Callable[..., Ran]


@pytest.fixture
def bare(postgres: PostgresAddress) -> Iterator[str]:
    """The DSN of a database without any tables."""
    name = f"quiesce_bare_{uuid.uuid4().hex[:12]}"
    yield postgres.create_database(name)
    postgres.drop_database(name)


@pytest.fixture
def quiesce(capsys: pytest.CaptureFixture[str]) -> Quiesce:
    def run(*argv: str) -> Ran:
        status = main(["inbox", *argv])
        return (status, *capsys.readouterr())

    return run


def mark(dsn: str, consumer: str, ages: dict[str, float]) -> None:
    """Marks of these ids, as old as said, in days."""

    async def write() -> None:
        async with connect(dsn) as connection:
            async with connection.transaction():
                await inbox_entries(connection, consumer, list(ages))
            for event_id, age in ages.items():
                await connection.execute(
                    "UPDATE inbox_entry SET handled_at = now() - $2::float8 * interval '1 day' WHERE event_id = $1",
                    event_id,
                    age,
                )

    asyncio.run(write())


def test_the_tables_are_shown_applied_and_validated(bare: str, quiesce: Quiesce, postgres: PostgresAddress) -> None:
    latest = INBOX.latest_version()
    status, out, _ = quiesce("schema", "show")
    assert status == 0
    assert all(f"CREATE TABLE IF NOT EXISTS {name}" in out for name in INBOX.names)
    status, _, err = quiesce("status", "--dsn", bare)
    assert (status, "Run: quiesce inbox schema apply" in err) == (1, True)
    status, _, err = quiesce("schema", "validate", "--dsn", bare)
    assert (status, "Run: quiesce inbox schema apply" in err) == (1, True)
    assert quiesce("schema", "apply", "--dsn", bare)[:2] == (0, f"inbox schema: version {latest}, was 0\n")
    assert quiesce("schema", "apply", "--dsn", bare)[:2] == (0, f"inbox schema: version {latest}, already there\n")
    assert quiesce("schema", "validate", "--dsn", bare)[:2] == (0, f"inbox schema: as version {latest} makes it\n")
    postgres.execute("ALTER TABLE inbox_entry SET UNLOGGED; DROP INDEX inbox_entry_age", bare.rpartition("/")[2])
    status, out, _ = quiesce("schema", "validate", "--dsn", bare, "--json")
    assert status == 1
    assert json.loads(out) == {
        "version": latest,
        "valid": False,
        "differences": [
            "index inbox_entry_age: missing, should be: inbox_entry USING btree (handled_at)",
            "table inbox_entry: is: table UNLOGGED; should be: table",
        ],
    }


def test_what_is_shown_runs_twice_and_beside_the_outbox(bare: str, postgres: PostgresAddress, quiesce: Quiesce) -> None:
    name = bare.rpartition("/")[2]
    for _ in range(2):
        postgres.execute(INBOX.show(), name)
    assert postgres.execute("SELECT max(version) FROM quiesce_inbox_schema", name) == str(INBOX.latest_version())
    assert main(["outbox", "schema", "apply", "--dsn", bare]) == 0
    assert main(["outbox", "schema", "validate", "--dsn", bare]) == 0
    assert quiesce("schema", "validate", "--dsn", bare)[0] == 0


def test_status_tells_whose_marks_there_are(database: str, quiesce: Quiesce) -> None:
    mark(database, "orders", {"e1": 1, "e2": 2})
    mark(database, "mails", {"e3": 3})
    status, out, _ = quiesce("status", "--dsn", database, "--json")
    shown = json.loads(out)
    assert status == 0
    assert shown["entries"] == {"events": 3, "exact": True}
    assert shown["consumers"] == {
        "mails": {"events": 1, "exact": True},
        "orders": {"events": 2, "exact": True},
    }
    assert 3 * 86_400 <= shown["oldest_seconds"] < 4 * 86_400
    status, out, _ = quiesce("status", "--dsn", database)
    assert status == 0
    assert "marks     3, the oldest" in out
    assert "orders    2" in out


def test_prune_asks_the_brokers_and_refuses_an_age_below_what_they_keep(
    database: str, quiesce: Quiesce, kafka: str, topic: MakeTopic
) -> None:
    name = topic("products", 1, **{"retention.ms": str(2 * 86_400_000), "segment.ms": str(86_400_000)})
    mark(database, "orders", {"old": 4, "young": 1})
    asks = ("--dsn", database, "--kafka", kafka, "--topic", name)
    status, _, err = quiesce("prune", *asks, "--older-than", "1d")
    assert status == 78
    assert f"got 1 d, takes 2 d or more: so long topic {name} keeps its records (retention.ms=172800000)" in err
    status, out, err = quiesce("prune", *asks, "--older-than", "2d", "--dry-run")
    assert (status, out) == (0, "would delete 1 marks\n")
    assert "a record may be there for 3 d" in err
    status, out, err = quiesce("prune", *asks, "--older-than", "3d", "--json")
    assert (status, err) == (0, "")
    assert json.loads(out) == {"pruned": 1, "finished": True, "dry_run": False}
    compacted = topic("compacted", 1, **{"cleanup.policy": "compact"})
    status, _, err = quiesce("prune", *asks, "--topic", compacted, "--older-than", "999d")
    assert (status, f"topic {compacted} keeps its records for ever" in err) == (78, True)


def test_prune_takes_an_age_and_a_topic_or_the_word_that_nobody_looks(database: str, quiesce: Quiesce) -> None:
    mark(database, "orders", {"old": 4, "young": 0})
    for argv, told in (
        ((), "--older-than: not set"),
        (("--older-than", "1d"), "--kafka and --topic: not both set"),
        (("--older-than", "1d", "--kafka", "b:9092"), "--kafka and --topic: not both set"),
        (("--older-than", "1d", "--unchecked", "--topic", "t"), "--unchecked: asks no broker"),
    ):
        status, _, err = quiesce("prune", "--dsn", database, *argv)
        assert (status, told in err) == (78, True), err
    with pytest.raises(SystemExit, match="2"):
        quiesce("prune", "--within", "0s")
    status, out, _ = quiesce("prune", "--dsn", database, "--older-than", "1d", "--unchecked")
    assert (status, out) == (0, "deleted: 1 marks\n")
