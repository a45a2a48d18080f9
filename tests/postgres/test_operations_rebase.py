"""A restored or failed-over database is noticed, and `rebase` gives its cursors a meaning again: nothing is lost."""

import asyncio
import subprocess
from collections.abc import AsyncIterator, Callable
from typing import Any
from uuid import UUID

import pytest
from operations_table import as_if_new, belongs_to, events, park, read_to_the_end, states, written

from quiesce.errors import DatabaseReplaced, SettingsError
from quiesce.lifecycle.deadline import Deadline
from quiesce.postgres import OutboxLog, connect, enqueue, schema
from quiesce.postgres.driver import Connection
from quiesce.postgres.outbox_status import status
from quiesce.postgres.peeking import peek
from quiesce.postgres.rebase import look, rebase
from quiesce.postgres.server_identity import replaced, server_identity
from quiesce.testing.postgres import LocalPostgres
from quiesce.testing.postgres_programs import installed

pytestmark = pytest.mark.xdist_group("servers of their own for rebase")

OwnPostgres = Callable[..., LocalPostgres]


@pytest.fixture
async def outbox(outbox_database: str) -> AsyncIterator[str]:
    async with as_if_new(outbox_database) as dsn:
        yield dsn


async def waiting(db: Connection) -> set[UUID]:
    return {one.id for one in await peek(db, limit=1000)}


async def read_with_late_ones(dsn: str) -> tuple[list[UUID], set[UUID]]:
    """An outbox whose cursors have read 20 events, while a transaction with 3 earlier ones was open. Then 5 more came.

    Returns those that were read, and those that were not.
    """
    async with connect(dsn) as db, connect(dsn) as slow:
        await belongs_to(db, "log")
        late = slow.transaction()
        await late.start()
        earlier = events(3, "late")
        for one in earlier:
            await enqueue(slow, one)
        read = await written(db, 20)
        await read_to_the_end(db)
        await late.commit()
        later = await written(db, 5, "new")
        return read, {*(one.id for one in earlier), *later}


async def test_on_the_same_server_nothing_is_replaced_and_resending_changes_nothing(
    outbox: str, db: Connection
) -> None:
    read, unread = await read_with_late_ones(outbox)
    await park(db, read[:2], "retry")
    await park(db, read[2:3], "dead")
    assert (await replaced(db)).why == []
    found = await look(db)
    assert (found.unread, found.parked, found.foreign) == (8, 2, 0)
    before = await waiting(db)
    assert before == unread | set(read[:2])
    epochs = await db.fetchval("SELECT sum(epoch) FROM outbox_lane")
    await rebase(db, "resend-all-unknown", said_by="me")
    assert await waiting(db) == before
    assert await db.fetchval("SELECT sum(epoch) FROM outbox_lane") == epochs + 16
    again = await look(db)
    assert again.unread + again.parked == 10
    assert again.parked > 2, "late ones are retries now"
    assert await db.fetchval("SELECT events FROM outbox_audit WHERE verb = 'rebase'") == 10


async def test_what_is_held_behind_dead_letters_alone_is_told(db: Connection) -> None:
    await belongs_to(db, "log")
    # Two rounds of 40 keys: an event of each, then one behind it.
    ids = await written(db, 80)
    await read_to_the_end(db)
    await park(db, ids[:3], "dead")
    await park(db, ids[3:5], "retry")
    await park(db, ids[40:45], "held")
    found = await look(db)
    assert (found.unread, found.parked, found.behind_dead) == (0, 7, 3)


async def test_skipping_leaves_dead_letters_and_what_commits_later(outbox: str, db: Connection) -> None:
    read, _ = await read_with_late_ones(outbox)
    await park(db, read[:2], "retry")
    await park(db, read[2:3], "dead")
    async with connect(outbox) as slow, slow.transaction():
        (open_one,) = events(1, "open")
        await enqueue(slow, open_one)
        with pytest.raises(SettingsError, match="nothing says that the database was replaced, and 8 events"):
            await rebase(db, "skip-to-now", said_by="me")
        await rebase(db, "skip-to-now", said_by="me", anyway=True)
        assert await waiting(db) == set()
    assert await waiting(db) == {open_one.id}
    assert await states(db) == {read[2]: "dead"}
    new = await written(db, 1)
    assert await waiting(db) == {open_one.id, *new}


async def test_an_unfinished_page_of_late_events_is_not_sent_again(db: Connection) -> None:
    await belongs_to(db, "log")
    ids = await written(db, 40)
    await db.execute(
        "UPDATE outbox_lane SET last = (SELECT max(position) FROM outbox_event), seen = '5:5:', "
        "until = pg_current_snapshot(), at = (SELECT min(position) + 9 FROM outbox_event)"
    )
    await rebase(db, "resend-all-unknown", said_by="me")
    assert await waiting(db) == set(ids[10:])
    assert await db.fetchval("SELECT count(*) FROM outbox_lane WHERE until IS NOT NULL") == 0


async def test_writers_go_on_meanwhile_and_nothing_of_theirs_is_lost(outbox: str, db: Connection) -> None:
    await belongs_to(db, "log")
    over = asyncio.Event()
    wrote: list[UUID] = []

    async def write_on(number: int) -> None:
        async with connect(outbox) as connection:
            while not over.is_set():
                wrote.extend(await written(connection, 3, f"w{number}-"))

    async with asyncio.TaskGroup() as group:
        for number in range(3):
            group.create_task(write_on(number))
        for _ in range(5):
            await rebase(db, "resend-all-unknown", said_by="me")
            await read_to_the_middle(db)
        over.set()
    await rebase(db, "resend-all-unknown", said_by="me")
    unread = {one.id for one in await peek(db, limit=100_000)}
    read = {row[0] for row in await db.fetch("SELECT id FROM outbox_event")} - unread
    # What counts as read is at most what the simulated cursor has passed.
    passed = {row[0] for row in await db.fetch("SELECT id FROM outbox_event WHERE position <= $1", await last(db))}
    assert read <= passed
    assert set(wrote) == read | unread


async def last(db: Connection) -> int:
    position: int = await db.fetchval("SELECT max(last) FROM outbox_lane")
    return position


async def read_to_the_middle(db: Connection) -> None:
    """A reader that takes half of what there is, by the rule: pages that reach beyond `last` are complete."""
    await db.execute(
        "UPDATE outbox_lane AS l SET seen = pg_current_snapshot(), last = greatest(last, ("
        "SELECT coalesce(max(position), 0) / 2 FROM outbox_event))"
    )


async def test_there_is_nothing_to_rebase_without_cursors(db: Connection) -> None:
    with pytest.raises(SettingsError, match="no relay has opened"):
        await look(db)
    await belongs_to(db, "row")
    with pytest.raises(SettingsError, match="row store"):
        await look(db)
    with pytest.raises(SettingsError, match="row store"):
        await rebase(db, "skip-to-now", said_by="me")


def dump_and_restore(source: LocalPostgres, target: LocalPostgres) -> None:
    programs = installed() / "bin"
    dump = subprocess.run(
        [programs / "pg_dump", source.dsn("shop")], capture_output=True, check=True, timeout=30, text=True
    )
    target.create_database("shop")
    target.execute(dump.stdout, "shop")


@pytest.mark.parametrize("choice", ["resend-all-unknown", "skip-to-now"])
async def test_a_dump_restored_elsewhere(own_postgres: OwnPostgres, choice: Any) -> None:
    source, target = own_postgres(), own_postgres()
    source.create_database("shop")
    source.execute(schema.show(), "shop")
    # The numbers of the old server are ahead of the new one's.
    source.execute("DO $$ BEGIN FOR n IN 1..3000 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$", "shop")
    read, unread = await read_with_late_ones(source.dsn("shop"))
    dump_and_restore(source, target)
    async with connect(target.dsn("shop")) as db:
        difference = await replaced(db)
        assert [why.split()[0] for why in difference.why] == ["cluster", "the"]
        assert difference.lanes_ahead == 16
        assert (await status(db)).waiting.events == 8
        found = await look(db)
        assert (found.unread, found.foreign) == (8, 28)
        await rebase(db, choice, said_by="me")
        assert (await replaced(db)).why == []
        wanted = unread if choice == "resend-all-unknown" else set()
        assert await waiting(db) == wanted
        # The numbers that this server gives out now are those of the restored rows: neither must disturb the other.
        more = await written(db, 20, "more")
        await db.execute("DO $$ BEGIN FOR n IN 1..4000 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$")
        assert await waiting(db) == wanted | set(more)
        assert not set(read) & await waiting(db)


async def test_a_failover_is_a_new_timeline(own_postgres: OwnPostgres) -> None:
    server = own_postgres()
    server.create_database("shop")
    server.execute(schema.show(), "shop")
    read, unread = await read_with_late_ones(server.dsn("shop"))
    server.stop()
    (server.directory / "data" / "standby.signal").touch()
    server.start()
    async with connect(server.dsn("shop")) as standby:
        with pytest.raises(SettingsError, match="standby"):
            await look(standby)
    server.execute("SELECT pg_promote(true, 20)", "shop")
    async with connect(server.dsn("shop")) as db:
        (why,) = (await replaced(db)).why
        assert why.startswith("timeline 2, was 1")
        await rebase(db, "resend-all-unknown", said_by="me")
        assert (await replaced(db)).why == []
        assert await waiting(db) == unread
        assert not set(read) & await waiting(db)


@pytest.mark.parametrize("choice", ["resend-all-unknown", "skip-to-now"])
async def test_a_copy_in_the_same_cluster(own_postgres: OwnPostgres, choice: Any) -> None:
    server = own_postgres()
    server.create_database("shop")
    server.execute(schema.show(), "shop")
    read, unread = await read_with_late_ones(server.dsn("shop"))
    server.execute("CREATE DATABASE rehearsal TEMPLATE shop")
    async with connect(server.dsn("rehearsal")) as db, connect(server.dsn("shop")) as original:
        (why,) = (await replaced(db)).why
        assert "a copy in the same cluster" in why
        store = OutboxLog(server.dsn("rehearsal"))
        with pytest.raises(DatabaseReplaced, match=r"a copy in the same cluster.*quiesce outbox rebase"):
            await store.open()
        await store.close(Deadline.never())
        # Transaction numbers are those of the cluster, so cursors and rows mean the same in both.
        found = await look(db)
        assert (found.unread, found.foreign) == (8, 0)
        await rebase(db, choice, said_by="me")
        assert (await replaced(db)).why == []
        wanted = unread if choice == "resend-all-unknown" else set()
        assert await waiting(db) == wanted
        more = await written(db, 20, "more")
        assert await waiting(db) == wanted | set(more)
        assert not set(read) & await waiting(db)
        assert (await replaced(original)).why == []
        assert await waiting(original) == unread


async def test_a_dump_restored_into_the_same_database(own_postgres: OwnPostgres) -> None:
    server = own_postgres()
    server.create_database("shop")
    server.execute(schema.show(), "shop")
    read, unread = await read_with_late_ones(server.dsn("shop"))
    programs = installed() / "bin"
    arguments = ["--clean", server.dsn("shop")]
    dump = subprocess.run([programs / "pg_dump", *arguments], capture_output=True, check=True, timeout=30, text=True)
    async with connect(server.dsn("shop")) as db:
        # Sent since, and gone with the restore.
        await written(db, 5, "since")
        await read_to_the_end(db)
    server.execute(dump.stdout, "shop")
    async with connect(server.dsn("shop")) as db:
        (why,) = (await replaced(db)).why
        assert "restored into the same database" in why
        assert await waiting(db) == unread
        await rebase(db, "resend-all-unknown", said_by="me")
        assert (await replaced(db)).why == []
        assert await waiting(db) == unread
        assert not set(read) & await waiting(db)


async def test_cursors_in_use_belong_to_where_the_step_finds_them(bare: str) -> None:
    async with connect(bare) as db:
        steps = schema.migrations()
        (place_step,) = [step for step in steps if step.name == "place"]
        for step in steps[: steps.index(place_step)]:
            await db.execute(step.sql)
        await db.execute("UPDATE outbox_control SET store = 'log', system_identifier = 1, timeline = 1")
        await db.execute(place_step.sql)
        place = "SELECT database_oid::bigint, table_oid::bigint FROM outbox_control"
        now = await server_identity(db)
        assert tuple(await db.fetchrow(place) or ()) == (now.database_oid, now.table_oid)
        await db.execute("UPDATE outbox_control SET system_identifier = NULL, database_oid = NULL, table_oid = NULL")
        await db.execute(place_step.sql)
        assert tuple(await db.fetchrow(place) or ()) == (None, None), "a template is nobody's place"
