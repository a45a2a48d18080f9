"""Which end of work is late: the numbers of assignments."""

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from quiesce.inbox.assignment import Assignment
from quiesce.inbox.record import Record, TopicPartition

A, B, C = (TopicPartition("t", number) for number in range(3))


def records(partition: TopicPartition, offsets: Iterable[int]) -> list[Record]:
    return [Record(*partition, offset, None, None) for offset in offsets]


def test_work_on_a_partition_that_stays_may_be_committed() -> None:
    assignment = Assignment()
    assignment.gained([A, B])
    number = assignment.hand_out(records(A, [0]), records(B, [0]))
    assignment.gone([B])
    assignment.gained([C])
    assert assignment.ours({A: 1, B: 1, C: 1}, number) == {A: 1}


def test_a_partition_that_went_and_came_back_is_new() -> None:
    assignment = Assignment()
    assignment.gained([A])
    number = assignment.hand_out(records(A, [0]))
    assignment.gone([A])
    assignment.gained([A])
    assert assignment.ours({A: 1}, number) == {}
    assert assignment.ours({A: 1}, assignment.number) == {A: 1}


def test_a_partition_counts_as_in_hand_until_it_is_done() -> None:
    assignment = Assignment()
    assignment.gained([A, B])
    number = assignment.hand_out(records(A, [0]))
    assert assignment.in_hand([A])
    assert not assignment.in_hand([B])
    assignment.done(number)
    assert not assignment.in_hand()


def test_an_empty_batch_is_not_in_hand() -> None:
    assignment = Assignment()
    assignment.hand_out([])
    assert not assignment.in_hand()


def test_what_is_put_away_without_a_commit_is_gone_back_to() -> None:
    assignment = Assignment()
    assignment.gained([A, B, C])
    # Offsets with gaps, as compaction leaves them.
    number = assignment.hand_out(records(A, [4, 7, 9]), records(B, [2]), records(C, [5]))
    assignment.committed({A: 8, B: 3})
    assignment.gone([C])
    assert assignment.done(number) == {A: 8}
    assert assignment.done(number) == {}


def test_what_is_committed_to_its_end_is_out_of_hand() -> None:
    assignment = Assignment()
    assignment.gained([A])
    assignment.hand_out(records(A, [0, 1, 5]))
    assignment.committed({A: 2})
    assert assignment.in_hand([A])
    assignment.committed({A: 6})
    assert not assignment.in_hand()


def test_a_commit_counts_for_all_the_numbers_of_its_partition() -> None:
    """A window of several batches: the rebalances between them did not touch the partition."""
    assignment = Assignment()
    assignment.gained([A, B])
    first = assignment.hand_out(records(A, [0, 1, 2]), records(B, [0]))
    assignment.gone([B])
    second = assignment.hand_out(records(A, [3, 4, 5]))
    assert first < second
    assignment.committed({A: 4})
    # Of the first nothing is left, of the second two records.
    assert assignment.done(first) == {}
    assert assignment.in_hand([A])
    assert assignment.done(second) == {A: 4}


def test_partitions_are_put_away_one_by_one() -> None:
    assignment = Assignment()
    assignment.gained([A, B])
    number = assignment.hand_out(records(A, [0]), records(B, [0]))
    assert assignment.done(number, [B]) == {B: 0}
    assert assignment.in_hand([A])
    assert not assignment.in_hand([B])
    assert assignment.done(number) == {A: 0}


def test_putting_away_a_later_stretch_does_not_pass_over_an_earlier_one() -> None:
    assignment = Assignment()
    assignment.gained([A, B])
    first = assignment.hand_out(records(A, [0, 1]))
    assignment.gone([B])
    second = assignment.hand_out(records(A, [2, 3]))
    assert assignment.done(first, [A]) == {A: 0}
    # It is fetched from 0 on already, and 2 and 3 come with it.
    assert assignment.done(second, [A]) == {}


def test_K1_what_was_in_hand_when_the_partition_went_holds_nobody_when_it_is_back() -> None:
    assignment = Assignment()
    assignment.gained([A])
    late = assignment.hand_out(records(A, [0, 1]))
    assignment.gone([A])
    assignment.gained([A])
    assignment.hand_out(records(A, [7]))
    assert assignment.ours({A: 2}, late) == {}
    assert not assignment.is_ours(A, late)
    assert assignment.done(late) == {}
    assert assignment.in_hand([A]), "the late end put away what is in hand now"


steps = st.lists(
    st.tuples(st.sampled_from(["gained", "gone", "hand out", "commit", "done"]), st.sampled_from([A, B, C])),
    max_size=60,
)


@given(steps)
def test_a_commit_never_goes_back_and_passes_over_nothing(script: list[tuple[str, TopicPartition]]) -> None:
    """One owner that handles what it has in hand in order, another one that moves on while we are away."""
    assignment = Assignment()
    log_position: dict[TopicPartition, int] = {}
    committed = {A: 0, B: 0, C: 0}
    in_hand: list[tuple[int, TopicPartition, int]] = []
    for step, partition in script:
        match step:
            case "gained" if partition not in assignment.partitions:
                assignment.gained([partition])
                log_position[partition] = committed[partition]
            case "gone" if partition in assignment.partitions:
                assignment.gone([partition])
                committed[partition] += 1  # the next owner goes on
            case "hand out" if partition in assignment.partitions:
                offset = log_position[partition]
                log_position[partition] += 1
                in_hand.append((assignment.hand_out(records(partition, [offset])), partition, offset))
            case "commit" if in_hand:
                number, source, offset = in_hand.pop(0)
                accepted = assignment.ours({source: offset + 1}, number)
                if accepted:
                    assert offset == committed[source], "a commit went back, or passed over a record"
                    committed[source] = offset + 1
                    assignment.committed(accepted)
            case "done" if in_hand:
                last = in_hand[-1][0]
                for number in {number for number, _, _ in in_hand} | {last}:
                    log_position.update(assignment.done(number))
                in_hand.clear()
