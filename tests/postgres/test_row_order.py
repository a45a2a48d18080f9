"""Order per key while several relays race, writers pause and roll back, claims are refused, given back and lost."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from random import Random
from uuid import UUID

import pytest
from outbox_databases import OpenStore
from outbox_table import event, others_locks, until, write

from quiesce.errors import ClaimLost, Unavailable
from quiesce.lifecycle.deadline import Deadline
from quiesce.outbox.outcome import DISPATCHED, Dead, Dispatched, Outcome, Retry
from quiesce.outbox.ports import Claim
from quiesce.postgres import OutboxRows, connect, enqueue
from quiesce.postgres.driver import Connection

KEYS = [f"key {n}" for n in range(5)]


@dataclass
class History:
    """What the writers committed and what the broker saw, in order."""

    committed: list[UUID] = field(default_factory=list)
    published: list[UUID] = field(default_factory=list)
    dead: set[UUID] = field(default_factory=set)
    writing: int = 0


async def writer(dsn: str, random: Random, history: History, rounds: int) -> None:
    """Locks its aggregate, then enqueues: with pauses wherever another could slip in."""
    history.writing += 1
    try:
        async with connect(dsn) as connection:
            for _ in range(rounds):
                key = random.choice(KEYS)
                transaction = connection.transaction()
                await transaction.start()
                await connection.execute("SELECT pg_advisory_xact_lock(hashtext($1))", key)
                ids = []
                for _ in range(random.choice([1, 1, 1, 2, 3])):
                    await asyncio.sleep(random.choice([0, 0, 0.002]))
                    ids.append(await enqueue(connection, event(key)))
                await asyncio.sleep(random.choice([0, 0, 0.001, 0.01]))
                if random.random() < 0.1:
                    await transaction.rollback()
                else:
                    await transaction.commit()
                    history.committed += ids
    finally:
        history.writing -= 1


class RacingRelay:
    """Publishes its claims in the order in which it made them, with up to two in flight, and makes all the trouble
    that a relay may make: refusals, missing answers, releases. It keeps the rule of the store: while an event is to be
    given back and the store does not know it yet, later ones of its key are not published."""

    def __init__(self, store: OutboxRows, random: Random, history: History) -> None:
        self._store = store
        self._random = random
        self._history = history
        self._in_flight: deque[tuple[Claim, dict[UUID, Outcome]]] = deque()

    async def run(self) -> None:
        empty = 0
        while empty < 3 or self._history.writing or self._in_flight:
            try:
                claim = await self._store.claim(self._random.choice([1, 3, 10, 40]))
            except Unavailable:
                continue
            empty = 0 if claim.events else empty + 1
            if claim.events:
                self._in_flight.append((claim, self._publish(claim)))
            if len(self._in_flight) == 2 or not claim.events:
                await asyncio.sleep(self._random.choice([0, 0.001, 0.005]))
                await self._settle()

    def _publish(self, claim: Claim) -> dict[UUID, Outcome]:
        outcomes: dict[UUID, Outcome] = {}
        if self._random.random() < 0.05:
            return outcomes
        # From its first unfinished event on a key is held, and not before: the event that everything waits for may come
        # back in a later claim than its successors.
        held: dict[str, int] = {}
        for earlier, known in self._in_flight:
            for one in earlier.events:
                if not isinstance(known.get(one.id), Dispatched | Dead):
                    held[one.aggregate_id] = min(one.position, held.get(one.aggregate_id, one.position))
        for one in claim.events:
            if one.position > held.get(one.aggregate_id, one.position):
                continue
            luck = self._random.random()
            if luck < 0.03:
                outcomes[one.id] = Retry("no leader", self._random.choice([0.0, 0.01]))
                held[one.aggregate_id] = one.position
            elif luck < 0.04:
                outcomes[one.id] = Dead("too large")
                self._history.dead.add(one.id)
            elif luck < 0.07:
                held[one.aggregate_id] = one.position
            else:
                outcomes[one.id] = DISPATCHED
                self._history.published.append(one.id)
        return outcomes

    async def _settle(self) -> None:
        if self._in_flight:
            claim, outcomes = self._in_flight.popleft()
            with suppress(ClaimLost, Unavailable):
                await (claim.settle(outcomes) if outcomes else claim.release())


async def kill_now_and_then(db: Connection, random: Random, history: History) -> None:
    """Ends the backend of some relay or other, so that its claim is lost in the middle."""
    while history.writing:
        await asyncio.sleep(random.uniform(0.05, 0.15))
        await db.execute(
            "SELECT pg_terminate_backend(pid) FROM (SELECT pid FROM pg_stat_activity "
            "WHERE datname = current_database() AND query LIKE '%SKIP LOCKED%' AND pid <> pg_backend_pid() "
            "ORDER BY random() LIMIT 1) AS victim"
        )


@asynccontextmanager
async def kept(db: Connection) -> AsyncIterator[None]:
    """What is written is noted in a table beside: of a deleted event nothing else tells its position."""
    await db.execute("""
        CREATE TABLE kept (id uuid, aggregate_id text, position bigint);
        CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN INSERT INTO kept VALUES (NEW.id, NEW.aggregate_id, NEW.position); RETURN NULL; END $$;
        CREATE TRIGGER keep AFTER INSERT ON outbox_event FOR EACH ROW EXECUTE FUNCTION keep();
    """)
    try:
        yield
    finally:
        await db.execute("SET lock_timeout = '5s'; DROP FUNCTION keep CASCADE; DROP TABLE kept")


async def positions(db: Connection) -> dict[str, list[UUID]]:
    rows = await db.fetch("SELECT id, aggregate_id FROM kept ORDER BY position")
    by_key: dict[str, list[UUID]] = {}
    for event_id, key in rows:
        by_key.setdefault(key, []).append(event_id)
    return by_key


def first_occurrences(published: Sequence[UUID]) -> list[UUID]:
    return list(dict.fromkeys(published))


@pytest.mark.parametrize(
    ("seed", "killing", "dispatched"),
    [(1, False, "mark"), (2, False, "delete"), (3, True, "mark"), (4, True, "delete"), (5, False, "mark")],
)
async def test_first_occurrences_of_a_key_come_in_order(
    outbox: str, db: Connection, open_store: OpenStore, seed: int, killing: bool, dispatched: str
) -> None:
    async with kept(db):
        await race(outbox, db, open_store, seed, killing, dispatched)


async def race(outbox: str, db: Connection, open_store: OpenStore, seed: int, killing: bool, dispatched: str) -> None:
    random, history = Random(seed), History()
    stores = [await open_store(claims=3, dispatched=dispatched) for _ in range(2)]
    async with asyncio.timeout(40), asyncio.TaskGroup() as running:
        for number in range(5):
            running.create_task(writer(outbox, Random(f"{seed} {number}"), history, rounds=12))
        await asyncio.sleep(0)
        for store in stores:
            running.create_task(RacingRelay(store, Random(random.random()), history).run())
        if killing:
            running.create_task(kill_now_and_then(db, random, history))
    tail = await open_store()

    async def drained() -> bool:
        claim = await tail.claim(100)
        history.published += [one.id for one in claim.events]
        await claim.settle({one.id: DISPATCHED for one in claim.events})
        waiting = await db.fetchval("SELECT count(*) FROM outbox_event WHERE dispatched_at IS NULL AND dead_at IS NULL")
        return bool(waiting == 0)

    await until(drained)
    dead = {row["event_id"] for row in await db.fetch("SELECT event_id FROM outbox_parked WHERE state = 'dead'")}
    assert set(history.committed) - dead <= set(history.published), "lost"
    if not killing:
        assert len(history.published) == len(set(history.published)), "published twice without a crash"
        assert dead == history.dead
    order = first_occurrences(history.published)
    for key, expected in (await positions(db)).items():
        seen = [one for one in order if one in set(expected)]
        # A dead letter that was published before its mark was lost may stand anywhere.
        assert [one for one in seen if one not in history.dead] == [
            one for one in expected if one in set(seen) and one not in history.dead
        ], f"{key} is out of order"
    assert await others_locks(db) == 0


async def test_O1_a_smaller_position_that_commits_late_is_neither_skipped_nor_waited_for(
    outbox: str, db: Connection, open_store: OpenStore
) -> None:
    store = await open_store()
    async with connect(outbox) as slow:
        transaction = slow.transaction()
        await transaction.start()
        late = await enqueue(slow, event("late"))
        began = time.monotonic()
        for _ in range(20):
            await write(db, event("quick"))
            claim = await store.claim(10)
            assert [one.aggregate_id for one in claim.events] == ["quick"]
            await claim.settle({one.id: DISPATCHED for one in claim.events})
        assert time.monotonic() - began < 5.0
        await transaction.commit()
    claim = await store.claim(10)
    assert [one.id for one in claim.events] == [late]


async def test_O1_and_of_the_same_key_it_comes_first(outbox: str, db: Connection, open_store: OpenStore) -> None:
    store = await open_store()
    lock = "SELECT pg_advisory_xact_lock(1)"

    async def place(connection: Connection, pause: float) -> UUID:
        async with connection.transaction():
            await connection.execute(lock)
            written = await enqueue(connection, event("k"))
            await asyncio.sleep(pause)
        return written

    async with connect(outbox) as other:
        first, second = await asyncio.gather(place(other, 0.1), place(db, 0.0))
        seen = [one.id for one in (await store.claim(10)).events]
    expected = [row["id"] for row in await db.fetch("SELECT id FROM outbox_event ORDER BY position")]
    assert seen == expected
    assert set(seen) == {first, second}


async def test_O5_a_retry_holds_its_key_and_no_other(db: Connection, open_store: OpenStore) -> None:
    one, other = await open_store(), await open_store()
    await write(db, event("k"))
    claim = await one.claim(1)
    (first,) = claim.events
    await claim.settle({first.id: Retry("no leader", 60.0)})
    await write(db, event("k"), event("flows"))
    for store in (one, other):
        seen = await store.claim(10)
        assert [e.aggregate_id for e in seen.events] == ["flows"]
        await seen.release()
    (parked,) = await db.fetch("SELECT state, attempts, reason, lane FROM outbox_parked")
    assert tuple(parked) == ("retry", 1, "no leader", None)


async def test_a_retry_waits_by_the_databases_clock(db: Connection, open_store: OpenStore) -> None:
    store = await open_store()
    await write(db, event("k"))
    claim = await store.claim(1)
    await claim.settle({claim.events[0].id: Retry("a reason with \0 in it", 3.0)})
    wait, reason = await db.fetchrow(
        "SELECT extract(epoch FROM next_at - clock_timestamp())::float8, reason FROM outbox_parked"
    ) or (0.0, "")
    assert 0.0 < wait <= 3.0
    assert reason == "a reason with  in it"


@pytest.mark.parametrize("wait", [-1.0, float("inf"), float("nan")])
async def test_a_wait_beyond_reason_is_recorded_all_the_same(
    db: Connection, open_store: OpenStore, wait: float
) -> None:
    store = await open_store()
    await write(db, event())
    claim = await store.claim(1)
    assert (await claim.settle({claim.events[0].id: Retry("no leader", wait)})).retried == 1


async def test_O13_what_was_claimed_and_not_published_is_untouched(db: Connection, open_store: OpenStore) -> None:
    await write(db, event("k"), event("other"))
    before = await db.fetch("SELECT * FROM outbox_event ORDER BY position")
    store = await open_store()
    assert len((await store.claim(10)).events) == 2
    closed = await store.close(Deadline(time.monotonic() + 1.0))
    assert closed.forced
    assert await db.fetch("SELECT * FROM outbox_event ORDER BY position") == before
    assert await db.fetchval("SELECT count(*) FROM outbox_parked") == 0


async def test_a_claim_ends_early_where_its_events_are_large(db: Connection, open_store: OpenStore) -> None:
    written = [event(f"key {n}", b"x" * size) for n, size in enumerate((10, 2000, 10, 5000, 10))]
    written = [event("tombstone", None), *written, event("tombstone", None)]
    await write(db, *written)
    store = await open_store(max_claim_bytes=2030, claims=6)
    seen = []
    while (claim := await store.claim(100)).events:
        assert sum(len(one.payload or b"") for one in claim.events) <= 2030 or len(claim.events) == 1
        seen += [one.id for one in claim.events]
        await claim.settle({one.id: DISPATCHED for one in claim.events})
    assert seen == [one.id for one in written]


async def test_a_page_of_tombstones_is_a_page(db: Connection, open_store: OpenStore) -> None:
    await write(db, *(event(f"key {n}", None) for n in range(20)))
    store = await open_store()
    assert len((await store.claim(15)).events) == 15


async def test_events_a_claim_leaves_over_for_their_size_are_not_overtaken(
    db: Connection, open_store: OpenStore
) -> None:
    written = [event("a", b"x" * 900), event("b", b"x" * 900), event("b"), event("c")]
    await write(db, *written)
    store = await open_store(max_claim_bytes=1000)
    first = await store.claim(2)
    assert [one.id for one in first.events] == [written[0].id]
    second = await store.claim(2)
    assert [one.id for one in second.events] == [written[3].id]
    await second.release()
    await first.release()
