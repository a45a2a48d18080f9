"""One lane in memory, without a server: whatever claims do, nothing is lost or comes twice, keys keep their order."""

import asyncio
from dataclasses import dataclass, field
from random import Random
from uuid import UUID

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quiesce.outbox.cursor import Cursor, Snapshot
from quiesce.outbox.event import ClaimedEvent, PlainEvent
from quiesce.outbox.outcome import DISPATCHED, Dead, Dispatched, Outcome, Retry
from quiesce.postgres.log_claim import LogClaim
from quiesce.postgres.log_lane import LaneLog
from quiesce.postgres.log_parked import Parked, ParkedKeys

LANE = 3


def an_event(position: int, key: str) -> ClaimedEvent:
    return PlainEvent(position, UUID(int=position), key, "orders", "Placed", b"", {})


@dataclass
class Stored:
    """What the database has: the events (with the numbers of their transactions), the cursor, what is set aside."""

    events: dict[UUID, ClaimedEvent] = field(default_factory=dict)
    xids: dict[UUID, int] = field(default_factory=dict)
    running: set[int] = field(default_factory=set)
    next_xid: int = 3
    cursor: Cursor = field(default_factory=Cursor)
    parked: dict[UUID, dict[str, object]] = field(default_factory=dict)

    def snapshot(self) -> Snapshot:
        return Snapshot(min(self.running, default=self.next_xid), self.next_xid, tuple(sorted(self.running)))


class Relay:
    """The lane's owner: claims, publishes in the order of the claims, settles in any order, dies and begins anew."""

    def __init__(self, random: Random, stored: Stored, holds: bool) -> None:
        self.random = random
        self.stored = stored
        self.holds = holds
        self.now = 0.0
        self.published: list[ClaimedEvent] = []
        self.dead: set[UUID] = set()
        self.number = 0
        self.crashed = False
        self.open: list[tuple[LogClaim, dict[UUID, Outcome]]] = []
        self.begin()

    def begin(self) -> None:
        """Takes the lane over."""
        self.open.clear()
        self.log = LaneLog(LANE, 1, self.stored.cursor, self.stored.cursor, 0, ParkedKeys(LANE), lambda _: self.holds)
        for event_id, row in sorted(self.stored.parked.items(), key=lambda item: item[0].int):
            if row["state"] == "dead" and not self.holds:
                continue
            attempts, key = row["attempts"], row["key"]
            assert isinstance(attempts, int)
            assert isinstance(key, str)
            parked = Parked(event_id, event_id.int, key, "", attempts)
            parked.dead, parked.stored, parked.due_at = row["state"] == "dead", str(row["state"]), self.now
            self.log.parked.load(parked)

    def claim(self) -> None:
        if self.log.blocked:
            return
        self.number += 1
        limit = self.random.choice([1, 2, 3, 8])
        claim = LogClaim(self.number, self._never, lambda _: None)
        for row in self.log.parked.due(self.now, limit):
            claim.take_parked(self.log, row, self.stored.events[row.event_id])
        self.read(claim, limit - len(claim.parked))
        if self.random.random() < 0.3:
            # As after a page of which some had to be passed over.
            self.read(claim, limit - len(claim.parked) - sum(len(part.events) for part in claim.parts))
        claim.fill()
        if claim.events:
            self.check_dead(claim)
            self.open.append((claim, self.publish(claim)))
        elif claim.parts:
            self.record(claim, {})

    def read(self, claim: LogClaim, room: int) -> None:
        until = self.stored.snapshot()
        cursor = self.log.reading
        wanted = [
            one
            for one in sorted(self.stored.events.values(), key=lambda one: one.position)
            if self.stored.xids[one.id] not in self.stored.running
            and cursor.wants(one.position, self.stored.xids[one.id], until)
        ]
        page = self.random.choice([max(1, room), 8])
        taken = self.log.append(claim, wanted[:page], until, complete=len(wanted) < page, room=room)
        if taken is not None:
            claim.take_part(taken)

    def check_dead(self, claim: LogClaim) -> None:
        """Nothing is handed out behind a dead letter that holds its key."""
        dead = [
            self.stored.events[event_id]
            for event_id, row in self.stored.parked.items()
            if self.holds and row["state"] == "dead"
        ]
        for one in claim.events:
            assert not any(
                letter.aggregate_id == one.aggregate_id and letter.position < one.position for letter in dead
            ), "it passed a dead letter"

    def publish(self, claim: LogClaim) -> dict[UUID, Outcome]:
        outcomes: dict[UUID, Outcome] = {}
        if self.random.random() < 0.1:
            return outcomes
        held: dict[str, int] = {}
        for earlier, known in self.open:
            for one in earlier.events:
                if not isinstance(known.get(one.id), Dispatched | Dead):
                    held[one.aggregate_id] = min(one.position, held.get(one.aggregate_id, one.position))
        for one in claim.events:
            if one.position > held.get(one.aggregate_id, one.position):
                continue
            luck = self.random.random()
            if luck < 0.15:
                outcomes[one.id] = Retry("no leader", self.random.choice([0.0, 1.0, 5.0]))
                held[one.aggregate_id] = one.position
            elif luck < 0.2:
                outcomes[one.id] = Dead("too large")
                self.dead.add(one.id)
                if self.holds:
                    held[one.aggregate_id] = one.position
            elif luck < 0.3:
                held[one.aggregate_id] = one.position
            else:
                outcomes[one.id] = DISPATCHED
                self.published.append(one)
        return outcomes

    def end(self) -> None:
        """Ends one open claim, not always the first."""
        if not self.open:
            return
        claim, outcomes = self.open.pop(0 if self.random.random() < 0.6 else -1)
        if outcomes:
            self.record(claim, outcomes)
        else:
            claim.give_back()

    def record(self, claim: LogClaim, outcomes: dict[UUID, Outcome]) -> None:
        claim._open = False
        claim.outcomes = outcomes
        claim.all_dispatched = all(outcomes.get(one.id) is DISPATCHED for one in claim.events)
        claim.plan(self.now)
        self.stored.cursor = self.log.recorded
        changes = self.log.parked.changes(self.now)
        for event_id in changes.delete:
            self.stored.parked.pop(event_id, None)
        for row in changes.write:
            self.stored.parked[UUID(str(row["event_id"]))] = row
        self.check_states()

    def check_states(self) -> None:
        """One retry a key, before everything that is held."""
        by_key: dict[object, list[str]] = {}
        for _, row in sorted(self.stored.parked.items(), key=lambda item: item[0].int):
            if row["state"] != "dead" or self.holds:
                by_key.setdefault(row["key"], []).append(str(row["state"]))
        for states in by_key.values():
            live = [state for state in states if state != "dead"]
            assert live.count("retry") <= 1
            assert "retry" not in live[1:]
            assert states[0] != "held"

    def die(self) -> None:
        self.crashed = True
        self.begin()

    def _never(self, claim: LogClaim) -> "asyncio.Future[None]":
        raise AssertionError("recorded by hand")


def write(random: Random, stored: Stored, keys: int, position: int) -> int:
    """A transaction of one key writes some events, and commits now or stays open. Returns the next position."""
    key = f"k{random.randrange(keys)}"
    if any(
        stored.events[event_id].aggregate_id == key for event_id, xid in stored.xids.items() if xid in stored.running
    ):
        # Its lock is taken.
        return position
    xid, stored.next_xid = stored.next_xid, stored.next_xid + 1
    if random.random() < 0.4:
        stored.running.add(xid)
    for _ in range(random.choice([1, 1, 2, 9])):
        one = an_event(position, key)
        stored.events[one.id], stored.xids[one.id] = one, xid
        position += 1
    return position


@given(
    seed=st.integers(0, 2**32),
    keys=st.integers(1, 4),
    steps=st.integers(10, 250),
    holds=st.booleans(),
    crashes=st.booleans(),
)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_whatever_claims_do(seed: int, keys: int, steps: int, holds: bool, crashes: bool) -> None:
    random = Random(seed)
    stored, position = Stored(), 1
    relay = Relay(random, stored, holds)
    for _ in range(steps):
        relay.now += 0.5
        act = random.random()
        if act < 0.2:
            position = write(random, stored, keys, position)
        elif act < 0.35 and stored.running:
            stored.running.discard(random.choice(sorted(stored.running)))
        elif act < 0.7:
            relay.claim()
        elif act < 0.98 or not crashes:
            relay.end()
        else:
            relay.die()
    stored.running.clear()
    idle = 0
    # The longest wait of a retry is five seconds.
    while idle < 8:
        relay.now += 1.0
        before = relay.log.reading
        relay.claim()
        # One that only passed over events of a key that is held got on as well.
        idle = 0 if relay.open or relay.log.reading != before else idle + 1
        relay.end()
    published = [one.id for one in relay.published]
    stuck = {event_id for event_id, row in stored.parked.items() if row["state"] != "dead"}
    dead = {event_id for event_id, row in stored.parked.items() if row["state"] == "dead"}
    if not holds:
        assert not stuck, "set aside for ever"
    assert stored.events.keys() == set(published) | dead | stuck, "lost"
    if not relay.crashed:
        assert len(published) == len(set(published)), "twice"
        assert not set(published) & (dead | stuck)
    for key in {one.aggregate_id for one in stored.events.values()}:
        firsts = list(dict.fromkeys(one.position for one in relay.published if one.aggregate_id == key))
        firsts = [number for number in firsts if UUID(int=number) not in relay.dead]
        assert firsts == sorted(firsts), key
