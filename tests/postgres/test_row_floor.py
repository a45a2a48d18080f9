"""The floor: below it nothing waits, so claims stay quick while something keeps the dead entries alive."""

import json
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from outbox_databases import OpenStore
from outbox_table import event, until, write

from quiesce.outbox.outcome import DISPATCHED
from quiesce.postgres import connect, enqueue, row_floor
from quiesce.postgres import row_statements as sql
from quiesce.postgres.claim_limits import begin
from quiesce.postgres.driver import Connection
from quiesce.postgres.outbox_rows import OutboxRows
from quiesce.postgres.row_floor import Floor


class Database:
    """Transactions with numbers, positions, and what a snapshot shows; the numbers a claim takes are its own."""

    def __init__(self) -> None:
        self.next_xid = 10
        self.next_position = 1
        self.running: dict[int, list[int]] = {}
        self.waiting: set[int] = set()

    def begin(self) -> int:
        self.next_xid += 1
        self.running[self.next_xid - 1] = []
        return self.next_xid - 1

    def insert(self, xid: int) -> None:
        self.running[xid].append(self.next_position)
        self.next_position += 1

    def end(self, xid: int, commit: bool) -> None:
        positions = self.running.pop(xid)
        if commit:
            self.waiting.update(positions)

    def xmin(self) -> int:
        return min(self.running, default=self.next_xid)


STEPS = ["begin", "insert", "commit", "abort", "claim", "mark", "survey"]


@settings(max_examples=800, deadline=None)
@given(st.integers(0, 2**32))
def test_nothing_ever_waits_below_the_floor(seed: int) -> None:
    random = Random(seed)
    # Mostly inserts of few transactions, so that places are taken and given up in another order.
    schedule = [(step, random.randint(0, 5)) for step in random.choices(STEPS, [2, 4, 2, 1, 2, 2, 3], k=60)]
    database, floor = Database(), Floor()
    claims: list[tuple[int, list[int]]] = []
    for step, number in schedule:
        writers = sorted(xid for xid in database.running if xid not in [own for own, _ in claims])
        match step:
            case "begin":
                database.begin()
            case "insert" if writers:
                database.insert(writers[number % len(writers)])
            case "commit" | "abort" if writers:
                database.end(writers[number % len(writers)], step == "commit")
            case "claim":
                taken = {position for _, held in claims for position in held}
                found = [p for p in sorted(database.waiting - taken) if p >= floor.position][: number + 1]
                own = database.begin() if found else None
                if found and own is not None:
                    floor.seen(found[0], found[-1])
                    claims.append((own, found))
                at_or_above = [p for p in database.waiting if p >= floor.position]
                if number % 2:
                    floor.surveyed(database.xmin(), own, min(at_or_above, default=None))
            case "mark" if claims:
                own, found = claims.pop(number % len(claims))
                database.running.pop(own)
                if number != 1:
                    database.waiting -= set(found)
            case "survey":
                at_or_above = [p for p in database.waiting if p >= floor.position]
                floor.surveyed(database.xmin(), None, min(at_or_above, default=None))
        still_to_come = [position for positions in database.running.values() for position in positions]
        assert all(position >= floor.position for position in [*database.waiting, *still_to_come])


def test_the_floor_rises_and_now_and_then_a_claim_begins_at_the_bottom() -> None:
    floor = Floor()
    assert floor.begin(0.0) == 0
    floor.seen(1, 100)
    floor.surveyed(50, 60, 1)
    assert floor.position == 0
    floor.surveyed(60, 70, 80)
    assert floor.position == 80
    assert floor.begin(1.0) == 80
    assert floor.begin(row_floor.FROM_BOTTOM_EVERY + 1.0) == 0
    assert floor.begin(row_floor.FROM_BOTTOM_EVERY + 2.0) == 80
    # One below the floor was found: there may be more.
    floor.seen(7, 200)
    assert floor.begin(row_floor.FROM_BOTTOM_EVERY + 3.0) == 0


ALL_ENDED = 30.0
"""Seconds for every transaction of the server to end that ran before: other tests have some that take their time."""


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_floor, "SURVEY_EVERY", 0.0)


async def move(store: OutboxRows, limit: int = 500) -> int:
    claim = await store.claim(limit)
    await claim.settle({one.id: DISPATCHED for one in claim.events})
    return len(claim.events)


async def pages_read(db: Connection, floor: int) -> int:
    await db.execute(begin(db.get_server_version().major, statement_timeout=10.0, claim_bound=20.0))
    await db.execute(f"PREPARE claim(bigint, text, bigint, bigint, bigint, bigint) AS {sql.statements(sql.OWN).claim}")
    text = await db.fetchval(
        "EXPLAIN (ANALYZE, BUFFERS, COSTS OFF, TIMING OFF, FORMAT JSON) "
        f"EXECUTE claim(10, '{{}}', 99999, {floor}, {floor}, 10)"
    )
    await db.execute("DEALLOCATE claim")
    await db.execute("ROLLBACK")
    pages = json.loads(text)[0]["Plan"]["Shared Hit Blocks"]
    assert isinstance(pages, int)
    return pages


@pytest.mark.usefixtures("hurried")
async def test_a_forgotten_session_does_not_slow_the_claims(outbox: str, db: Connection, open_store: OpenStore) -> None:
    async with connect(outbox) as forgotten:
        await db.execute(
            "INSERT INTO outbox_event (id, aggregate_id, topic, type) "
            "SELECT gen_random_uuid(), 'key ' || n, 'orders', 'Placed' FROM generate_series(1, 3000) AS n"
        )
        await forgotten.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM outbox_event")
        store = await open_store()
        while await move(store):
            pass
        await write(db, event("last"))
        last = await db.fetchval("SELECT max(position) FROM outbox_event")

        async def risen() -> bool:
            claim = await store.claim(1)
            await claim.release()
            return store._reader._floor.position >= int(last)

        await until(risen, ALL_ENDED)
        with_floor, from_bottom = await pages_read(db, store._reader._floor.position), await pages_read(db, 0)
        # Every page of what was dispatched, or just the last ones.
        assert from_bottom > 60, "the dead entries are gone, so this shows nothing"
        assert with_floor < from_bottom / 4


@pytest.mark.usefixtures("hurried")
async def test_an_open_writer_keeps_the_floor_down(outbox: str, db: Connection, open_store: OpenStore) -> None:
    store = await open_store()
    async with connect(outbox) as slow:
        transaction = slow.transaction()
        await transaction.start()
        late = await enqueue(slow, event("late"))
        for _ in range(10):
            await write(db, *(event(f"key {n}") for n in range(5)))
            assert await move(store) == 5
        assert store._reader._floor.position == 0
        await transaction.commit()
    claim = await store.claim(10)
    assert [one.id for one in claim.events] == [late]


@pytest.mark.usefixtures("hurried")
async def test_what_somebody_puts_below_the_floor_is_found(
    db: Connection, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await open_store()

    async def risen() -> bool:
        await write(db, event("k"), event("other"))
        assert await move(store) == 2
        return store._reader._floor.position > int(await db.fetchval("SELECT min(position) FROM outbox_event"))

    await until(risen, ALL_ENDED)
    await db.execute("UPDATE outbox_event SET dispatched_at = NULL")
    monkeypatch.setattr(store._reader._floor, "_bottom_at", 0.0)
    events = await db.fetchval("SELECT count(*) FROM outbox_event")
    assert events > 2
    assert await move(store, 1) == 1
    # More of them than a page: the next claims go on at the bottom.
    assert [await move(store, 1) for _ in range(events)] == [1] * (events - 1) + [0]
