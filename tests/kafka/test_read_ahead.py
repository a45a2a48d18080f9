"""What is read ahead, which partitions are paused for it, and ends without a record. No broker, no clock."""

from collections.abc import Sequence

import pytest
from confluent_kafka import KafkaError, Message

from quiesce.inbox.record import Record, TopicPartition
from quiesce.kafka.read_ahead import ReadAhead
from quiesce.kafka.records import Reader
from quiesce.kafka.tails import Tails

A, B, C = (TopicPartition("t", number) for number in range(3))
NOBODY: frozenset[TopicPartition] = frozenset()


def run(partition: TopicPartition, count: int, begin: int = 0) -> tuple[TopicPartition, list[Record]]:
    return partition, [Record(*partition, offset, None, b"x") for offset in range(begin, begin + count)]


def taken(runs: Sequence[Sequence[Record]]) -> list[tuple[int, list[int]]]:
    return [(records[0].partition, [record.offset for record in records]) for records in runs]


def test_no_partition_starves_behind_another() -> None:
    ahead = ReadAhead(100, 10**6)
    ahead.add([run(A, 5), run(B, 2)], 1, now=0)
    assert taken(ahead.take(3, (), now=0)) == [(0, [0, 1, 2])]
    assert taken(ahead.take(3, (), now=0)) == [(1, [0, 1]), (0, [3])]
    assert taken(ahead.take(3, (), now=0)) == [(0, [4])]
    assert ahead.take(3, (), now=0) == []


@pytest.mark.parametrize("limit", [1, 7, 40])
def test_a_partition_taken_piece_by_piece_keeps_its_order(limit: int) -> None:
    ahead = ReadAhead(100, 10**6)
    ahead.add([run(A, 30)], 1, now=0)
    offsets = [offset for _ in range(30) for _, got in taken(ahead.take(limit, (), now=0)) for offset in got]
    assert offsets == list(range(30))
    assert (len(ahead), ahead.room()) == (0, 100)


def test_records_and_what_came_in_their_place_are_told_apart_each_partition_in_order() -> None:
    end = KafkaError(KafkaError._PARTITION_EOF)
    messages = [
        Message("t", 0, 1, b"k", b"a"),
        Message("t", 0, 2, b"k", b"b"),
        Message("t", 1, 7, b"k", b"c"),
        Message("t", 0, 3, error=end),
        Message("u", 1, 1, None, None),
        Message("t", 0, 5, b"k", b"d"),
    ]
    runs, faults = Reader().read(messages)
    told = {source: [(record.offset, record.value) for record in records] for source, records in runs.items()}
    assert told == {A: [(1, b"a"), (2, b"b"), (5, b"d")], B: [(7, b"c")], TopicPartition("u", 1): [(1, None)]}
    assert all(record.source == source for source, records in runs.items() for record in records)
    assert faults == [(end, A, 3)]


def test_all_is_paused_once_nobody_has_taken_anything_for_a_moment_and_flows_when_half_is_gone() -> None:
    ahead = ReadAhead(10, 10**6)
    assert ahead.to_pause([A, B], now=0) == NOBODY
    ahead.add([run(A, 10)], 1, now=0)
    assert ahead.room() == 0
    assert ahead.to_pause([A, B], now=0) is None, "a handler that keeps up is spared the pause"
    assert ahead.to_pause([A, B], now=0.05) is None
    assert ahead.to_pause([A, B], now=0.2) == frozenset({A, B})
    ahead.take(4, (), now=0.3)
    assert ahead.to_pause([A, B], now=0.3) == frozenset({A, B})
    ahead.take(1, (), now=0.4)
    assert ahead.to_pause([A, B], now=0.4) == NOBODY
    assert ahead.room() == 5


def test_a_full_partition_is_paused_alone_and_takes_no_room_of_the_others() -> None:
    ahead = ReadAhead(10, 10**6)
    assert ahead.take(5, [A], now=0) == []
    ahead.add([run(A, 9), run(B, 3)], 1, now=0)
    assert ahead.room() == 7
    assert ahead.to_pause([A, B], now=0.05) == NOBODY
    assert ahead.to_pause([A, B], now=0.2) == frozenset({A})
    assert taken(ahead.take(5, [A], now=0.2)) == [(1, [0, 1, 2])]
    assert ahead.to_pause([A, B], now=0.3) == frozenset({A})
    # Lifted as soon as it is taken from again.
    assert taken(ahead.take(20, [], now=0.3)) == [(0, list(range(9)))]
    assert ahead.to_pause([A, B], now=0.3) == NOBODY


def test_a_full_partition_does_not_wait_for_its_pause_at_the_limit() -> None:
    ahead = ReadAhead(10, 10**6)
    ahead.take(5, [A], now=0)
    ahead.add([run(A, 10)], 1, now=0)
    assert ahead.to_pause([A, B], now=0.01) == frozenset({A})


def test_a_full_partition_that_has_nothing_is_not_paused() -> None:
    ahead = ReadAhead(10, 10**6)
    ahead.take(5, [A], now=0)
    assert ahead.to_pause([A, B], now=9) == NOBODY


def test_large_records_are_fewer() -> None:
    ahead = ReadAhead(1000, 10_000)
    ahead.add([run(A, 1)], 1000, now=0)
    assert ahead.room() == 9
    ahead.add([run(A, 9, 1)], 1000, now=0)
    assert ahead.room() == 0
    ahead.take(100, (), now=0)
    ahead.add([run(A, 1)], 10**9, now=0)
    ahead.take(100, (), now=0)
    assert ahead.room() == 1, "one is always asked for"


def test_what_goes_takes_its_records_along() -> None:
    ahead = ReadAhead(10, 10**6)
    ahead.add([run(A, 6), run(B, 4)], 1, now=0)
    ahead.drop([A, C])
    assert (len(ahead), ahead.of(A), ahead.room()) == (4, 0, 6)


def test_K3_an_end_is_committed_once_all_before_it_is() -> None:
    tails = Tails()
    tails.committed({A: 5})
    tails.at_end(A, 6)
    assert tails.found(lambda _: False) == {}
    assert tails.found(lambda _: True) == {A: 6}
    tails.committed({A: 6})
    assert tails.found(lambda _: True) == {}


def test_an_end_that_is_committed_is_not_committed_again() -> None:
    tails = Tails()
    tails.committed({A: 6})
    tails.at_end(A, 6)
    assert tails.found(lambda _: True) == {}


def test_where_nothing_is_known_of_what_is_committed_no_end_is() -> None:
    tails = Tails()
    tails.at_end(A, 6)
    assert tails.found(lambda _: True) == {}
    tails.committed({A: 6})
    tails.gone([A])
    tails.at_end(A, 9)
    assert tails.found(lambda _: True) == {}


def test_an_end_is_none_once_more_has_come() -> None:
    tails = Tails()
    tails.committed({A: 5})
    tails.at_end(A, 6)
    tails.forget([A])
    assert tails.found(lambda _: True) == {}
