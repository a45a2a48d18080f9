"""Which records may begin, and which offsets may be committed, whatever happens in whatever order."""

from collections import Counter, defaultdict
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quiesce.inbox.beyond import Beyond
from quiesce.inbox.delivered import Delivered
from quiesce.inbox.piece import Handled, Held, Outage, Outcome, Piece, PutBack, Split, place_of
from quiesce.inbox.record import Record, TopicPartition
from quiesce.inbox.window import Window

ZERO, ONE = TopicPartition("t", 0), TopicPartition("t", 1)


def record(offset: int, key: bytes | None = b"k", partition: int = 0) -> Record:
    return Record("t", partition, offset, key, b"v")


def still_ours(number: int, partition: TopicPartition) -> bool:
    return True


def single(*records: Record, ahead: int = 100, free_nulls: bool = False) -> Window:
    window = Window(batch=None, ahead=ahead, free_nulls=free_nulls)
    window.deliver(records, 1, still_ours)
    return window


def batches(*records: Record, batch: int = 100) -> Window:
    window = Window(batch=batch, ahead=1000)
    window.deliver(records, 1, still_ours)
    return window


def begin(window: Window, now: float = 0.0) -> Piece:
    piece = window.next(now)
    assert piece is not None
    return piece


def offsets(piece: Piece) -> list[int]:
    return [one.offset for one in piece.records]


def places(window: Window) -> dict[TopicPartition, int]:
    found: dict[TopicPartition, int] = {}
    for one in window.to_commit():
        found |= one.by_partition()
    return found


def beyond(window: Window) -> list[int]:
    """The offsets of partition 0 that are committed as done behind the place."""
    (done,) = [one.beyond().get(ZERO, Beyond(0)) for one in window.to_commit()]
    return [offset for offset in range(done.base, done.end) if offset in done]


def test_records_of_one_key_are_begun_one_after_the_other_and_others_beside_them() -> None:
    window = single(record(0, b"a"), record(1, b"a"), record(2, b"b"), record(3, b"a"))
    first, other = begin(window), begin(window)
    assert (offsets(first), offsets(other)) == ([0], [2])
    assert window.next(0.0) is None
    window.ended(other, Handled())
    assert window.next(0.0) is None
    for expected in (1, 3):
        window.ended(first, Handled())
        first = begin(window)
        assert offsets(first) == [expected]


def test_records_without_a_key_keep_the_order_of_their_partition_unless_they_are_free_of_it() -> None:
    window = single(record(0, None), record(1, None), record(2, b"a"))
    assert offsets(begin(window)) == [0]
    assert offsets(begin(window)) == [2]
    assert window.next(0.0) is None
    window = single(record(0, None), record(1, None), free_nulls=True)
    assert offsets(begin(window)) == [0]
    assert offsets(begin(window)) == [1]


def test_K2_one_never_begun_holds_the_commit_in_front_of_itself() -> None:
    window = single(record(0, b"a"), record(1, b"a"), record(2, b"b"), record(3, b"c"))
    first, second, third = begin(window), begin(window), begin(window)
    assert offsets(third) == [3]
    assert places(window) == {}
    window.ended(second, Handled())
    window.ended(third, Handled())
    assert places(window) == {ZERO: 0}
    assert beyond(window) == [2, 3]
    window.ended(first, Handled())
    assert places(window) == {ZERO: 1}
    part = window.parts[ZERO]
    window.leave(part)
    assert [one.offset for one in part.handed_back] == [1]
    assert places(window) == {ZERO: 1}, "one that was put away is passed over"
    assert beyond(window) == [2, 3]


def test_K3_the_second_ends_first_and_gaps_are_nothing_to_wait_for() -> None:
    window = single(record(3, b"a"), record(7, b"b"), record(9, b"c"))
    three, seven, nine = begin(window), begin(window), begin(window)
    window.ended(seven, Handled())
    assert places(window) == {ZERO: 3}
    assert 7 in beyond(window)
    window.ended(three, Handled())
    assert places(window) == {ZERO: 9}
    window.ended(nine, Handled())
    assert places(window) == {ZERO: 10}
    assert window.left == 0


def test_K26_a_refused_record_keeps_its_place_in_its_key_and_holds_up_no_other() -> None:
    window = single(*(record(n, b"a") for n in range(5)), record(5, b"b"))
    piece = begin(window)
    window.ended(piece, Held({place_of(piece.records[0]): 10.0}))
    assert window.waiting_keys == 1
    assert offsets(begin(window)) == [5]
    assert window.next(9.9) is None
    assert window.wake_at() == 10.0
    order = []
    for _ in range(5):
        piece = begin(window, 10.0)
        order += offsets(piece)
        window.ended(piece, Handled())
    assert order == [0, 1, 2, 3, 4]


def test_K26_many_waiting_retries_of_one_key_and_of_many_all_come_back_in_order() -> None:
    window = single(*(record(n, b"a" if n % 2 else b"b%d" % n) for n in range(20)))
    seen = Counter[int]()
    order = defaultdict[bytes | None, list[int]](list)
    now = 0.0
    while window.left:
        piece = window.next(now)
        if piece is None:
            now = window.wake_at()
            continue
        (one,) = piece.records
        seen[one.offset] += 1
        if seen[one.offset] < 3:
            window.ended(piece, Held({place_of(one): now + 1.0}))
        else:
            order[one.key].append(one.offset)
            window.ended(piece, Handled())
    assert set(seen.values()) == {3}
    assert order[b"a"] == list(range(1, 20, 2))


def test_a_batch_lies_over_partitions_and_another_may_take_those_that_are_not_in_hand() -> None:
    window = batches(record(0), record(1), record(0, partition=1), batch=2)
    first = begin(window)
    assert [place_of(one) for one in first.records] == [(ZERO, 0), (ZERO, 1)]
    window.deliver([record(2)], 1, still_ours)
    second = begin(window)
    assert [place_of(one) for one in second.records] == [(ONE, 0)]
    assert window.next(0.0) is None, "two batches of one partition at once"
    window.ended(first, Handled())
    assert offsets(begin(window)) == [2]


def test_a_failing_batch_is_halved_until_the_one_record_is_found_and_the_rest_goes_by_in_batches() -> None:
    window = batches(*(record(n, b"k%d" % n) for n in range(64)), *(record(n, partition=1) for n in range(4)))
    calls = handled = 0
    while window.left:
        piece = window.next(0.0)
        if piece is None:
            break
        calls += 1
        guilty = [one for one in piece.records if place_of(one) == (ZERO, 37)]
        if not guilty:
            handled += len(piece.records)
            window.ended(piece, Handled())
        elif len(piece.records) > 1:
            window.ended(piece, Split())
        else:
            window.ended(piece, Held({place_of(guilty[0]): 100.0}))
    assert handled == 67
    assert calls < 25
    assert places(window) == {ZERO: 37, ONE: 4}
    assert offsets(begin(window, 100.0)) == [37]


def test_the_record_that_a_batch_names_waits_with_its_key_and_the_rest_begins_again_at_once() -> None:
    window = batches(record(0, b"a"), record(1, b"b"), record(2, b"a"), record(3, b"b"), record(4, b"c"))
    piece = begin(window)
    window.ended(piece, Held({(ZERO, 1): 5.0}))
    again = begin(window)
    assert offsets(again) == [0, 2, 4]
    window.ended(again, Handled())
    assert places(window) == {ZERO: 1}
    assert window.next(4.9) is None
    for expected in (1, 3):
        piece = begin(window, 5.0)
        assert offsets(piece) == [expected]
        window.ended(piece, Handled())
    assert places(window) == {ZERO: 5}


def test_a_batch_that_met_an_outage_waits_as_a_whole_and_other_partitions_do_not() -> None:
    window = batches(record(0), record(1), batch=2)
    window.ended(begin(window), Outage(7.0))
    window.deliver([record(0, partition=1)], 1, still_ours)
    assert [place_of(one) for one in begin(window).records] == [(ONE, 0)]
    assert window.next(6.0) is None
    assert offsets(begin(window, 7.0)) == [0, 1]


@pytest.mark.parametrize("batch", [None, 10])
def test_K23_suspects_begin_one_by_one_in_order_with_nothing_else_in_hand(batch: int | None) -> None:
    window = Window(batch=batch, ahead=100)
    window.deliver([record(0, partition=1)], 1, still_ours)
    innocent = begin(window)
    window.deliver([record(n, b"k%d" % n) for n in range(3)], 1, still_ours, checked=False)
    assert window.next(0.0) is None, "begun before anybody asked"
    window.check(suspect=True)
    assert window.next(0.0) is None, "begun beside others"
    window.deliver([record(1, partition=1)], 1, still_ours)
    window.ended(innocent, Handled())
    for expected in range(3):
        piece = begin(window)
        assert piece.alone
        assert [place_of(one) for one in piece.records] == [(ZERO, expected)]
        assert window.next(0.0) is None
        window.ended(piece, Held({(ZERO, 1): 9.0}) if expected == 1 else Handled())
    piece = begin(window)
    assert [place_of(one) for one in piece.records] == [(ONE, 1)]
    assert window.next(9.0) is None
    window.ended(piece, Handled())
    assert begin(window, 9.0).alone


def test_K1_what_ends_after_its_partition_was_dropped_changes_nothing() -> None:
    window = single(record(0, b"a"), record(1, b"b"))
    piece = begin(window)
    window.drop(window.parts[ZERO])
    assert window.left == 0
    window.deliver([record(0, b"a"), record(1, b"b")], 3, still_ours)
    assert window.ended(piece, Handled()) == 1
    assert places(window) == {}
    assert window.left == 2
    assert window.ended(begin(window), Handled()) == 0
    assert places(window) == {ZERO: 1}


def test_K13_a_partition_that_went_and_came_back_begins_anew_from_what_is_delivered_now() -> None:
    window = single(record(10, b"a"), record(11, b"b"))
    piece = begin(window)
    gone: Callable[[int, TopicPartition], bool] = lambda number, _: number >= 5  # noqa: E731
    (stale,) = window.deliver([record(7, b"a"), record(8, b"b")], 5, gone)
    assert stale.source == ZERO
    assert window.ended(piece, Handled()) == 1
    assert [offsets(begin(window)), offsets(begin(window))] == [[7], [8]]
    # A rebalance that leaves it alone changes nothing.
    assert window.deliver([record(9, b"c")], 6, still_ours) == []
    assert [one.number for one in window.to_commit()] == []
    assert offsets(begin(window)) == [9]


def test_a_partition_is_full_while_too_much_was_delivered_beyond_the_first_record_that_is_not_done() -> None:
    window = Window(batch=None, ahead=10)
    for begin_at in range(0, 12, 3):
        window.deliver([record(n, b"k%d" % n) for n in range(begin_at, begin_at + 3)], 1, still_ours)
    assert window.full() == {ZERO}
    first = begin(window)
    for _ in range(11):
        window.ended(begin(window), Handled())
    # Eleven are done, and none of them may be committed.
    assert window.full() == {ZERO}
    assert window.ahead() == 12
    window.ended(first, Handled())
    assert window.full() == frozenset()
    assert window.ahead() == 0


def test_large_records_make_a_partition_full_though_they_are_few() -> None:
    window = Window(batch=None, ahead=1000, ahead_bytes=100)
    large = [Record("t", 0, n, b"k%d" % n, b"x" * 50) for n in range(3)]
    window.deliver(large[:1], 1, still_ours)
    assert window.full() == frozenset()
    window.deliver(large[1:2], 1, still_ours)
    assert window.full() == {ZERO}
    window.deliver([Record("t", 1, 0, None, None)], 1, still_ours)
    assert window.full() == {ZERO}, "the other one flows"
    window.ended(begin(window), Handled())
    assert window.full() == frozenset(), "half is gone"
    window.deliver([Record("t", 0, 9, b"k9", b"x" * 1000)], 1, still_ours)
    while (piece := window.next(0.0)) is not None:
        window.ended(piece, Handled())
    assert window.full() == frozenset(), "one that is larger than all of it goes alone"


def test_a_commit_that_is_confirmed_is_not_made_again_until_more_is_handled() -> None:
    window = single(record(0, b"a"), record(1, b"b"), record(2, b"c"))
    begin(window)
    one, two = begin(window), begin(window)
    window.ended(one, Handled())
    (commit,) = window.to_commit()
    window.ended(two, Handled())
    assert window.confirmed(commit) == 1
    assert window.unconfirmed == 1
    assert beyond(window) == [1, 2], "what ended while it was on its way comes with the next"
    (commit,) = window.to_commit()
    assert window.confirmed(commit) == 1
    assert window.to_commit() == []


def test_what_has_not_begun_of_a_leaving_partition_never_does_and_all_that_was_done_is_told() -> None:
    window = single(record(0, b"a"), record(1, b"a"), record(2, b"b"), record(3, b"b"), record(4, b"c"))
    one, two = begin(window), begin(window)
    part = window.parts[ZERO]
    window.leave(part)
    assert sorted(left.offset for left in part.handed_back) == [1, 3, 4]
    window.ended(two, Handled())
    window.ended(one, PutBack())
    assert not part.in_hand
    assert window.next(1e9) is None
    assert places(window) == {ZERO: 0}
    assert beyond(window) == [2]
    assert window.left == 0


def test_K2_all_that_was_done_behind_a_hot_key_is_told_when_its_partition_leaves() -> None:
    window = single(*(record(n, b"a" if n in (0, 2, 4, 9) else b"k%d" % n) for n in range(10)))
    hot = begin(window)
    for _ in range(5):
        window.ended(begin(window), Handled())
    part = window.parts[ZERO]
    window.leave(part)
    assert sorted(one.offset for one in part.handed_back) == [2, 4, 8, 9]
    window.ended(hot, Handled())
    assert window.next(1e9) is None
    assert window.left == 0
    assert places(window) == {ZERO: 2}
    assert beyond(window) == [3, 5, 6, 7]


def test_a_key_in_backoff_is_handed_back_as_soon_as_its_partition_leaves() -> None:
    window = single(record(0, b"a"), record(1, b"a"), record(2, b"b"), record(3, b"b"))
    failing, other = begin(window), begin(window)
    window.ended(other, Handled())
    part = window.parts[ZERO]
    window.leave(part)
    assert part.left == 1, "the one in hand"
    window.ended(failing, Held({place_of(failing.records[0]): 5.0}))
    assert window.next(1e9) is None
    assert sorted(one.offset for one in part.handed_back) == [0, 1, 3]
    assert window.left == 0
    assert places(window) == {ZERO: 0}
    assert beyond(window) == [2]


class World:
    """Plays with a window as a consumer and a group might, and checks every step against what is simple."""

    def __init__(self, batch: int | None, keys: int) -> None:
        self.window = Window(batch=batch, ahead=20)
        self.keys = keys
        self.now = 0.0
        self.number = 1
        self.since = {ZERO: 1, ONE: 1}
        self.position = {ZERO: 0, ONE: 0}
        self.committed = {ZERO: 0, ONE: 0}
        self.beyond = {ZERO: Beyond(0), ONE: Beyond(0)}
        self.told: dict[TopicPartition, set[int]] = {ZERO: set(), ONE: set()}
        """Done, and the group has been told."""
        self.delivered: dict[Delivered, list[int]] = defaultdict(list)
        self.done: dict[Delivered, set[int]] = defaultdict(set)
        self.running: list[Piece] = []
        self.ended_of_key: dict[tuple[Delivered, bytes | None], int] = defaultdict(lambda: -1)

    def ours(self, number: int, partition: TopicPartition) -> bool:
        return self.since[partition] <= number

    def key(self, offset: int) -> bytes | None:
        return None if offset % 7 == 3 else b"k%d" % (offset * 5 % self.keys)

    def deliver(self, zero: int, one: int) -> None:
        records = []
        for partition, count in ((ZERO, zero), (ONE, one)):
            if partition in self.window.full():
                continue
            for _ in range(count):
                offset = self.position[partition]
                # Gaps, as compaction leaves them.
                self.position[partition] = offset + (3 if offset % 5 == 0 else 1)
                if offset in self.beyond[partition]:
                    continue
                assert offset not in self.told[partition], "it was done, the group knew, and it comes again"
                records.append(Record("t", partition.partition, offset, self.key(offset), b""))
        if records:
            self.window.deliver(records, self.number, self.ours)
            for one_record in records:
                self.delivered[self.window.parts[one_record.source]].append(one_record.offset)

    def begin(self) -> bool:
        piece = self.window.next(self.now)
        if piece is None:
            return False
        in_hand = {(part, one.key) for other in self.running for part, of in other.shares() for one in of}
        for part, of in piece.shares():
            assert not part.leaving, "begun behind the revoke"
            assert not part.dropped
            assert [one.offset for one in of] == sorted(one.offset for one in of)
            for one in of:
                assert (part, one.key) not in in_hand, "two of one key at once"
                assert one.offset > self.ended_of_key[part, one.key], "begun again though it is done"
                earlier = [o for o in self.delivered[part] if o < one.offset and self.key(o) == one.key]
                mine = {other.offset for other in of}
                assert all(o in self.done[part] or o in mine for o in earlier), "out of the order of its key"
        self.running.append(piece)
        return True

    def end(self, which: int, how: int) -> None:
        if not self.running:
            return
        piece = self.running.pop(which % len(self.running))
        first = piece.records[which % len(piece.records)]
        outcomes: list[Outcome] = [
            Handled(),
            Handled(),
            Held({place_of(first): self.now + 2.0}),
            Outage(self.now + 1.0),
            Split() if len(piece.records) > 1 else Held({}),
            PutBack(),
        ]
        outcome = outcomes[how]
        if how == 2 and len(piece.records) > 1:
            piece.settled.add(place_of(piece.records[0]))
        for part, of in piece.shares():
            if isinstance(outcome, Handled):
                self.done[part] |= {one.offset for one in of}
                for one in of:
                    self.ended_of_key[part, one.key] = one.offset
        for source, offset in piece.settled:
            for part in piece.partitions:
                if part.source == source:
                    self.done[part].add(offset)
        self.window.ended(piece, outcome)

    def commit(self) -> None:
        for one in self.window.to_commit():
            for part, place in one.places.items():
                assert self.ours(one.number, part.source)
                source = part.source
                assert place.offset >= self.committed[source], "a commit went back"
                before = {offset for offset in self.delivered[part] if offset < place.offset}
                assert before <= self.done[part], "committed in front of one that is not done"
                passed = {offset for offset in self.delivered[part] if offset in place.beyond}
                assert passed <= self.done[part], "told as done, and is not"
                assert before | passed == self.done[part], "done, and not told"
                known = (place.beyond.seen_from(place.offset) | self.beyond[source]).settled()
                self.committed[source], self.beyond[source] = known.base, known
                self.told[source] |= self.done[part]
            self.window.confirmed(one)
        assert self.window.to_commit() == []

    def leave(self, partition: TopicPartition, how: int) -> None:
        """A revoke: what is in hand ends, well or not, it is committed, and the partition goes."""
        part = self.window.parts.get(partition)
        if part is not None:
            self.window.leave(part)
            for piece in [one for one in self.running if any(mine is part for mine, _ in one.parts)]:
                self.end(self.running.index(piece), how)
            assert not part.left, "a revoke does not come to its end"
            self.commit()
            self.window.drop(part)
        self.away(partition)

    def lose(self, partition: TopicPartition) -> None:
        part = self.window.parts.get(partition)
        if part is not None:
            self.window.drop(part)
        self.away(partition)

    def away(self, partition: TopicPartition) -> None:
        """It goes, and comes back: from what is committed."""
        self.number += 1
        self.since[partition] = self.number
        self.position[partition] = self.committed[partition]

    def finish(self) -> None:
        for _ in range(10_000):
            while self.running:
                self.end(0, 0)
            self.begin()
            if not self.running:
                if not self.window.left:
                    break
                self.now = self.window.wake_at()
        self.commit()
        assert self.window.left == 0, "something is stuck"
        for partition, part in self.window.parts.items():
            if self.delivered[part]:
                assert self.committed[partition] > self.delivered[part][-1]
            assert not part.key_queues


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("deliver"), st.integers(0, 6), st.integers(0, 3)),
        st.tuples(st.just("begin")),
        st.tuples(st.just("begin")),
        st.tuples(st.just("end"), st.integers(0, 5), st.integers(0, 5)),
        st.tuples(st.just("commit")),
        st.tuples(st.just("leave"), st.sampled_from([ZERO, ONE]), st.integers(0, 5)),
        st.tuples(st.just("lose"), st.sampled_from([ZERO, ONE])),
        st.tuples(st.just("later")),
    ),
    max_size=60,
)


@pytest.mark.parametrize("batch", [None, 4])
@given(keys=st.integers(1, 4), steps=STEPS)
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_order_per_key_no_commit_in_front_of_an_unfinished_record_and_everything_is_done_in_the_end(
    batch: int | None, keys: int, steps: list[tuple[object, ...]]
) -> None:
    world = World(batch, keys)
    for name, *arguments in steps:
        if name == "later":
            world.now += 1.0
        else:
            getattr(world, str(name))(*arguments)
    world.finish()
