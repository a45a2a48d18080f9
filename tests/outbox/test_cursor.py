"""The cursor of the log store: every schedule of writers is read without loss, without a double, in order per key."""

from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quiesce.outbox.cursor import Cursor, Snapshot


@pytest.mark.parametrize("text", ["1:1:", "10:20:10,14,15", "7:9:8"])
def test_a_snapshot_is_read_and_written_as_postgresql_does(text: str) -> None:
    assert str(Snapshot.parse(text)) == text


def test_what_a_snapshot_sees() -> None:
    snapshot = Snapshot.parse("10:20:10,14,15")
    assert [xid for xid in range(8, 23) if snapshot.visible(xid)] == [8, 9, 11, 12, 13, 16, 17, 18, 19]


@pytest.mark.parametrize("text", ["", "1:2", "a:b:", "1:2:3:4"])
def test_what_is_no_snapshot_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        Snapshot.parse(text)


def test_an_empty_page_that_is_cut_moves_nothing() -> None:
    cursor = Cursor(Snapshot(5, 9, (5,)), 40)
    assert cursor.after(0, Snapshot(9, 12), complete=False) == cursor
    assert cursor.after(0, Snapshot(9, 12), complete=True) == Cursor(Snapshot(9, 12), 40)


def test_more_late_ones_than_a_page_are_read_under_one_snapshot() -> None:
    cursor, first, second = Cursor(Snapshot(5, 9, (5, 6)), 40), Snapshot(7, 12), Snapshot(12, 20)
    midway = cursor.after(12, first, complete=False)
    assert midway == Cursor(cursor.seen, 40, until=first, at=12)
    assert midway.after(30, second, complete=False) == Cursor(cursor.seen, 40, until=first, at=30)
    assert midway.after(41, second, complete=False) == Cursor(first, 41)
    assert midway.after(30, second, complete=True) == Cursor(first, 40)


class Database:
    """Transactions, their numbers and positions, and which of them a snapshot taken now would show."""

    def __init__(self, random: Random, keys: int) -> None:
        self.random = random
        self.next_xid = 3
        self.next_position = 1
        self.running: dict[int, list[tuple[int, str]]] = {}
        self.key_of: dict[int, str | None] = {}
        self.locked: set[str] = set()
        self.rows: list[tuple[int, int, str]] = []
        self.keys = [f"k{n}" for n in range(keys)]

    def snapshot(self) -> Snapshot:
        running = tuple(sorted(self.running))
        return Snapshot(min(running, default=self.next_xid), self.next_xid, running)

    def step(self) -> None:
        """One writer does one thing: begins, takes a position, commits or rolls back."""
        act = self.random.random()
        if act < 0.3 or not self.running:
            # A transaction without a key is one that writes elsewhere, and may stay open for long.
            key = self.random.choice([*self.keys, None])
            if key is None or key not in self.locked:
                xid, self.next_xid = self.next_xid, self.next_xid + 1
                self.running[xid] = []
                self.key_of[xid] = key
                if key is not None:
                    self.locked.add(key)
            return
        xid = self.random.choice(list(self.running))
        key = self.key_of[xid]
        if act < 0.65 and key is not None:
            # A subtransaction's row carries the number of the whole; its own numbers are taken and never seen here.
            self.next_xid += self.random.choice([0, 0, 0, 1])
            for _ in range(self.random.choice([1, 1, 2, 6])):
                self.running[xid].append((self.next_position, key))
                self.next_position += self.random.choice([1, 1, 1, 2])
        elif key is not None or act > 0.97:
            rows = self.running.pop(xid)
            if key is not None:
                self.locked.discard(key)
            if self.random.random() > 0.15:
                self.rows += [(position, xid, key) for position, key in rows]

    def finish(self) -> None:
        for xid in list(self.running):
            self.rows += [(position, xid, key) for position, key in self.running.pop(xid)]


def page(database: Database, cursor: Cursor, until: Snapshot, limit: int) -> tuple[list[tuple[int, str]], bool]:
    wanted = sorted((p, key) for p, xid, key in database.rows if cursor.wants(p, xid, until))
    return wanted[:limit], len(wanted) < limit


def read(database: Database, cursor: Cursor, random: Random, sent: list[tuple[int, str]]) -> Cursor:
    """One page, of which perhaps only the first events are settled, as after a crash between two of them."""
    until = database.snapshot()
    events, complete = page(database, cursor, until, random.choice([1, 1, 2, 3, 5]))
    if events and random.random() < 0.2:
        events, complete = events[: random.randint(0, len(events) - 1)], False
    sent += events
    return cursor.after(events[-1][0] if events else 0, until, complete=complete)


@given(seed=st.integers(0, 2**32), keys=st.integers(1, 6), steps=st.integers(10, 250), reads=st.floats(0.02, 0.8))
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_no_schedule_of_writers_loses_doubles_or_disorders_an_event(
    seed: int, keys: int, steps: int, reads: float
) -> None:
    random = Random(seed)
    database, cursor = Database(random, keys), Cursor()
    sent: list[tuple[int, str]] = []
    for _ in range(steps):
        database.step()
        if random.random() < reads:
            # Written down and read back, as every take-over does.
            seen, until = str(cursor.seen), cursor.until and str(cursor.until)
            cursor = Cursor(Snapshot.parse(seen), cursor.last, Snapshot.parse(until) if until else None, cursor.at)
            cursor = read(database, cursor, random, sent)
    database.finish()
    for _ in range(len(database.rows) + 3):
        before = cursor
        cursor = read(database, cursor, random, sent)
        if cursor == before and len(sent) >= len(database.rows):
            break
    while len(sent) < len(database.rows):
        count = len(sent)
        until = database.snapshot()
        events, complete = page(database, cursor, until, 5)
        sent += events
        cursor = cursor.after(events[-1][0] if events else 0, until, complete=complete)
        assert len(sent) > count, "it stands still, and something is lost"
    assert len(sent) == len(set(sent)), "twice"
    assert set(sent) == {(position, key) for position, _, key in database.rows}, "lost"
    for key in database.keys:
        of_key = [position for position, its in sent if its == key]
        assert of_key == sorted(of_key), key
