"""The log under everything that writers and relays may do at once: nothing lost, nothing twice, each key in order."""

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from uuid import UUID

import pytest
from outbox_databases import OpenLog
from outbox_table import event, until, write

from quiesce.errors import ClaimLost, Unavailable
from quiesce.lifecycle.deadline import Deadline
from quiesce.outbox.outcome import DISPATCHED, Dead, Dispatched, Outcome, Retry
from quiesce.outbox.ports import Claim
from quiesce.postgres import OutboxLog, connect, enqueue
from quiesce.postgres.driver import Connection

KEYS = [f"key {n}" for n in range(8)]


@dataclass
class History:
    """What the writers committed and what the broker saw, in order."""

    committed: list[UUID] = field(default_factory=list)
    published: list[UUID] = field(default_factory=list)
    dead: set[UUID] = field(default_factory=set)
    writing: int = 0


async def enqueue_some(connection: Connection, random: Random, key: str, count: int) -> list[UUID]:
    """Some in subtransactions, and some of these taken back."""
    ids: list[UUID] = []
    for _ in range(count):
        await asyncio.sleep(random.choice([0, 0, 0, 0.002]))
        if random.random() < 0.2:
            part = connection.transaction()
            await part.start()
            written = await enqueue(connection, event(key))
            if random.random() < 0.3:
                await part.rollback()
            else:
                await part.commit()
                ids.append(written)
        else:
            ids.append(await enqueue(connection, event(key)))
    return ids


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
                # Sometimes more than any page that the relays read.
                ids = await enqueue_some(connection, random, key, random.choice([1, 1, 1, 2, 3, 60]))
                await asyncio.sleep(random.choice([0, 0, 0.001, 0.01, 0.2]))
                if random.random() < 0.1:
                    await transaction.rollback()
                else:
                    await transaction.commit()
                    history.committed += ids
    finally:
        history.writing -= 1


async def stay_open(dsn: str, history: History) -> None:
    """A transaction that wrote something else, and stays open for as long as anybody writes."""
    async with connect(dsn) as connection, connection.transaction():
        await connection.execute("SELECT pg_current_xact_id()")
        while history.writing:
            await asyncio.sleep(0.02)


class RacingRelay:
    """Publishes its claims in the order in which it made them, with up to three in flight, and makes all the trouble
    that a relay may make: refusals, missing answers, releases, settles in another order, leaving. It keeps the store's
    rule: while an event is to be given back, later ones of its key that are in claims already are not published."""

    def __init__(
        self, open_log: OpenLog, random: Random, history: History, patience: float, trouble: float = 1.0
    ) -> None:
        self._open_log = open_log
        self._trouble = trouble
        self._patience = patience
        self._random = random
        self._history = history
        self._in_flight: deque[tuple[Claim, dict[UUID, Outcome]]] = deque()

    async def run(self) -> None:
        while self._history.writing:
            try:
                store = await self._open_log(claims=4)
            except Unavailable:
                continue
            store._writer._patience = self._patience
            for _ in range(self._random.randint(20, 150)):
                if not self._history.writing:
                    break
                await self._step(store)
            while self._in_flight:
                await self._settle()
            assert not (await store.close(Deadline(time.monotonic() + 3.0))).forced
            await asyncio.sleep(self._random.choice([0, 0.05]))

    async def _step(self, store: OutboxLog) -> None:
        try:
            if self._random.random() < 0.7:
                # While something is settled, or not.
                watch = store.watch(self._random.choice([0.01, 0.05]), 0.001)
                await asyncio.gather(watch, self._settle() if self._random.random() < 0.3 else asyncio.sleep(0))
            claim = await store.claim(self._random.choice([1, 3, 5, 10, 40]))
        except Unavailable:
            return
        if claim.events:
            self._in_flight.append((claim, self._publish(claim)))
        if len(self._in_flight) == 3 or not claim.events:
            await asyncio.sleep(self._random.choice([0, 0.001, 0.005]))
            await self._settle()

    def _publish(self, claim: Claim) -> dict[UUID, Outcome]:
        outcomes: dict[UUID, Outcome] = {}
        if self._random.random() < 0.05 * self._trouble:
            return outcomes
        held: dict[str, int] = {}
        for earlier, known in self._in_flight:
            for one in earlier.events:
                if not isinstance(known.get(one.id), Dispatched | Dead):
                    held[one.aggregate_id] = min(one.position, held.get(one.aggregate_id, one.position))
        for one in claim.events:
            if one.position > held.get(one.aggregate_id, one.position):
                continue
            luck = self._random.random() if self._trouble else 1.0
            if luck < 0.03:
                outcomes[one.id] = Retry("no leader", self._random.choice([0.0, 0.01, 0.1]))
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
        if not self._in_flight:
            return
        ending = [self._in_flight.popleft()]
        if self._in_flight and self._random.random() < 0.3:
            ending.insert(0, self._in_flight.popleft())
        if self._patience < 0.1 and self._random.random() < 0.5:
            # The cursor has to pass over the earlier one while it is still open.
            for claim, outcomes in ending:
                await self._end(claim, outcomes)
        else:
            await asyncio.gather(*(self._end(claim, outcomes) for claim, outcomes in ending))

    async def _end(self, claim: Claim, outcomes: dict[UUID, Outcome]) -> None:
        with suppress(ClaimLost, Unavailable):
            await (claim.settle(outcomes) if outcomes else claim.release())


async def kill_now_and_then(db: Connection, random: Random, history: History) -> None:
    """Ends one backend or other of a relay, that of its lanes too."""
    while history.writing:
        await asyncio.sleep(random.uniform(0.1, 0.3))
        await db.execute(
            "SELECT pg_terminate_backend(pid) FROM (SELECT pid FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid() AND (query LIKE '%outbox_lane%' "
            "OR query LIKE '%outbox_watch%' OR query LIKE '%advisory_xact_lock%' AND application_name LIKE 'quiesce%') "
            "ORDER BY random() LIMIT 1) AS victim"
        )


async def positions(db: Connection) -> dict[str, list[UUID]]:
    by_key: dict[str, list[UUID]] = {}
    for event_id, key in await db.fetch("SELECT id, aggregate_id FROM outbox_event ORDER BY position"):
        by_key.setdefault(key, []).append(event_id)
    return by_key


def first_occurrences(published: Sequence[UUID]) -> list[UUID]:
    return list(dict.fromkeys(published))


@pytest.mark.parametrize(
    ("seed", "killing", "patience", "trouble"),
    [(1, False, 2.0, 1.0), (2, False, 0.003, 1.0), (3, True, 2.0, 1.0), (4, True, 0.003, 1.0), (5, True, 2.0, 0.0)],
)
async def test_O1_nothing_is_lost_nothing_comes_twice_each_key_is_in_order(
    outbox: str, db: Connection, open_log: OpenLog, seed: int, killing: bool, patience: float, trouble: float
) -> None:
    random, history = Random(seed), History()
    async with asyncio.timeout(40), asyncio.TaskGroup() as running:
        for number in range(6):
            running.create_task(writer(outbox, Random(f"{seed} {number}"), history, rounds=15))
        await asyncio.sleep(0)
        running.create_task(stay_open(outbox, history))
        for _ in range(2):
            running.create_task(RacingRelay(open_log, Random(random.random()), history, patience, trouble).run())
        if killing:
            running.create_task(kill_now_and_then(db, random, history))
    tail = await open_log()

    async def drained() -> bool:
        claim = await tail.claim(100)
        history.published += [one.id for one in claim.events]
        await claim.settle({one.id: DISPATCHED for one in claim.events})
        dead = {row["event_id"] for row in await db.fetch("SELECT event_id FROM outbox_parked WHERE state = 'dead'")}
        return set(history.committed) <= set(history.published) | dead and not claim.events

    await until(drained, within=10)
    assert await db.fetchval("SELECT count(*) FROM outbox_parked WHERE state <> 'dead'") == 0
    dead = {row["event_id"] for row in await db.fetch("SELECT event_id FROM outbox_parked WHERE state = 'dead'")}
    assert set(history.committed) - dead <= set(history.published), "lost"
    if not killing:
        assert len(history.published) == len(set(history.published)), "published twice without a crash"
        assert dead == history.dead
    order = first_occurrences(history.published)
    for key, expected in (await positions(db)).items():
        known = set(expected)
        # A dead letter that was published before its mark was lost may stand anywhere.
        seen = [one for one in order if one in known and one not in history.dead]
        assert seen == [one for one in expected if one in set(seen)], f"{key} is out of order"


async def test_O1_a_smaller_position_that_commits_late_is_neither_skipped_nor_waited_for(
    outbox: str, db: Connection, open_log: OpenLog
) -> None:
    store = await open_log()
    async with connect(outbox) as slow:
        transaction = slow.transaction()
        await transaction.start()
        late = [await enqueue(slow, event("quick")) for _ in range(30)]
        began = time.monotonic()
        for _ in range(20):
            # The same lane, and no lock on the key: nothing but its own number tells the late ones apart.
            await write(db, event("quick"))
            claim = await store.claim(10)
            assert len(claim.events) == 1
            await claim.settle({one.id: DISPATCHED for one in claim.events})
        assert time.monotonic() - began < 5.0
        await transaction.commit()
    seen = []
    for limit in (7, 1, 12):
        # More late ones than a page, while others go on writing.
        await write(db, event("quick"))
        claim = await store.claim(limit)
        seen += [one.id for one in claim.events]
        await claim.settle({one.id: DISPATCHED for one in claim.events})
    assert seen == late[:20]
    claim = await store.claim(100)
    # Those that were not there when the late ones were first read come when these are through.
    assert [one.id for one in claim.events[:10]] == late[20:]
    assert len(claim.events) == 11
    await claim.settle({one.id: DISPATCHED for one in claim.events})
    assert len((await store.claim(100)).events) == 2
