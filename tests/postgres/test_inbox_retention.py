"""Marks go by age, in small pieces, one pruner at a time, and never while their record may come again."""

import json
import logging
from collections.abc import AsyncIterator
from math import inf

import pytest

from quiesce.errors import SchemaMissing, SettingsError, Unavailable
from quiesce.inbox.retention import Kept, TopicsKeep
from quiesce.postgres import connect, inbox_entries, open_pool, prune_inbox
from quiesce.postgres.driver import Connection
from quiesce.postgres.inbox_retention import PIECE_SQL, PrunedInbox, prunable
from quiesce.postgres.inbox_status import inbox_status

DAY = 86_400.0


@pytest.fixture
async def db(database: str) -> AsyncIterator[Connection]:
    async with connect(database) as connection:
        yield connection


async def mark(db: Connection, consumer: str, ages: dict[str, float]) -> None:
    """Marks of these ids, as old as said, in days."""
    async with db.transaction():
        await inbox_entries(db, consumer, list(ages))
    await db.executemany(
        "UPDATE inbox_entry SET handled_at = now() - $3::float8 * interval '1 day' "
        "WHERE consumer = $1 AND event_id = $2",
        [(consumer, event_id, age) for event_id, age in ages.items()],
    )


async def left(db: Connection) -> set[str]:
    return {row["event_id"] for row in await db.fetch("SELECT event_id FROM inbox_entry")}


async def test_what_is_older_goes_whoever_handled_it_and_the_rest_stays(db: Connection) -> None:
    await mark(db, "orders", {"old": 15, "young": 13})
    await mark(db, "mails", {"ancient": 900, "new": 0})
    assert await prunable(db, 14 * DAY) == (2, True)
    assert await prune_inbox(db, 14 * DAY, 7 * DAY) == PrunedInbox(2, finished=True)
    assert await left(db) == {"young", "new"}
    assert await prune_inbox(db, 14 * DAY, 7 * DAY) == PrunedInbox(0, finished=True)


async def test_it_goes_piece_by_piece_to_the_end_and_no_further_than_its_time(db: Connection) -> None:
    ids = [f"e{number}" for number in range(250)]
    await mark(db, "orders", dict.fromkeys(ids, 15.0) | {"young": 0})
    assert await prune_inbox(db, 14 * DAY, "unchecked", piece=100, bound=0.0) == PrunedInbox(100)
    # All of one age, as the marks of one batch are: the pieces still come to an end.
    assert await prune_inbox(db, 14 * DAY, "unchecked", piece=7, bound=60.0) == PrunedInbox(150, finished=True)
    assert await left(db) == {"young"}


async def test_one_prunes_and_another_one_returns_at_once(database: str, db: Connection) -> None:
    await mark(db, "orders", {"old": 15})
    async with connect(database) as other, other.transaction():
        assert await other.fetchval("SELECT pg_try_advisory_xact_lock(1903520115, 'inbox_entry'::regclass::oid::int)")
        assert await prune_inbox(db, 14 * DAY, "unchecked") == PrunedInbox(0)
    assert await prune_inbox(db, 14 * DAY, "unchecked") == PrunedInbox(1, finished=True)


async def test_it_takes_a_pool(database: str, db: Connection) -> None:
    await mark(db, "orders", {"old": 15})
    pool = await open_pool(database, max_size=1).open()
    assert await prune_inbox(pool, 14 * DAY, "unchecked") == PrunedInbox(1, finished=True)
    await pool.close()


async def asked() -> Kept:
    return Kept(7 * DAY, "topic products", "retention.ms=604800000", longer=DAY)


async def for_ever() -> Kept:
    return Kept(inf, "topic products", "cleanup.policy=compact")


@pytest.mark.parametrize(
    ("older_than", "topics_keep", "told"),
    [
        (6 * DAY, asked, r"got 6 d, takes 7 d or more: so long topic products keeps its records \(retention.ms=6048"),
        (6 * DAY, 7 * DAY, "got 6 d, takes 7 d or more: so long a topic keeps its records"),
        (999 * DAY, for_ever, r"topic products keeps its records for ever \(cleanup.policy=compact\)"),
        (-1.0, asked, "older_than: got -1"),
        (float("nan"), asked, "older_than: got nan"),
        (7 * DAY, "checked", "topics_keep: got 'checked', takes seconds"),
        (7 * DAY, -1.0, "topics_keep: got -1"),
    ],
)
async def test_an_age_at_which_a_record_may_still_come_is_refused(
    db: Connection, older_than: float, topics_keep: TopicsKeep, told: str
) -> None:
    await mark(db, "orders", {"old": 1000})
    with pytest.raises(SettingsError, match=told):
        await prune_inbox(db, older_than, topics_keep)
    assert await left(db) == {"old"}


async def test_as_long_as_the_topic_is_enough_and_a_segment_more_is_advised(
    db: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    await mark(db, "orders", {"old": 9, "young": 6})
    with caplog.at_level(logging.WARNING):
        assert await prune_inbox(db, 8 * DAY, asked) == PrunedInbox(1, finished=True)
        assert caplog.messages == []
        assert await prune_inbox(db, 7 * DAY, asked) == PrunedInbox(0, finished=True)
    assert "a record may be there for 8 d (retention.ms and segment.ms); marks go after 7 d" in caplog.text


async def test_brokers_that_do_not_answer_delete_nothing(db: Connection) -> None:
    async def away() -> Kept:
        raise Unavailable("the brokers do not answer")

    await mark(db, "orders", {"old": 1000})
    with pytest.raises(Unavailable):
        await prune_inbox(db, 14 * DAY, away)
    assert await left(db) == {"old"}


async def test_a_missing_table_names_the_command(bare: str) -> None:
    async with connect(bare) as connection:
        with pytest.raises(SchemaMissing, match="quiesce inbox schema apply"):
            await prune_inbox(connection, 14 * DAY, "unchecked")


async def test_a_piece_never_reads_the_whole_table(db: Connection) -> None:
    await db.execute(
        "INSERT INTO inbox_entry (consumer, event_id, handled_at) "
        "SELECT 'orders', n::text, now() - n * interval '1 second' FROM generate_series(1, 20000) AS n; "
        "ANALYZE inbox_entry"
    )
    limit = await db.fetchval("SELECT now() - interval '1 hour'")
    async with db.transaction():
        plan = json.loads(await db.fetchval(f"EXPLAIN (FORMAT JSON) {PIECE_SQL}", limit, None, 1000))
    told = json.dumps(plan)
    assert "Seq Scan" not in told
    assert "inbox_entry_age" in told
    assert "Tid Scan" in told


async def test_status_counts_and_beyond_a_limit_estimates(db: Connection) -> None:
    empty = await inbox_status(db)
    assert (empty.entries.events, empty.oldest, list(empty.consumers)) == (0, None, [])
    await mark(db, "orders", {f"e{number}": 1 for number in range(30)})
    await mark(db, "mails", {"e1": 2})
    await db.execute("ANALYZE inbox_entry")
    now = await inbox_status(db)
    assert [(name, count.events, count.exact) for name, count in now.consumers] == [
        ("mails", 1, True),
        ("orders", 30, True),
    ]
    assert now.entries.events == 31
    assert now.oldest is not None
    assert 2 * DAY <= now.oldest < 2.5 * DAY
    assert now.bytes > 0
    rough = await inbox_status(db, count_to=10)
    assert str(rough.entries) == "about 31"
    assert [(name, str(count)) for name, count in rough.consumers] == [("orders", "about 31")], "by the newest"
