"""Who is to blame for the death of a process: reckoned over drawn histories of deaths."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quiesce.inbox.starts import Begun, Stretch, Suspects

DEATHS = 3


def test_K23_who_dies_alone_counts_on_and_a_neighbour_does_not() -> None:
    suspects = Suspects()
    suspects.died("a", Stretch(10, 14))
    assert [suspects.earlier(offset) for offset in range(9, 16)] == [0, 1, 1, 1, 1, 1, 0]
    suspects.ended(10)
    suspects.ended(11)
    suspects.died("b", Stretch(12, 12))
    assert [suspects.earlier(offset) for offset in range(10, 15)] == [0, 0, 2, 1, 1]
    suspects.died("c", None)
    assert suspects.earlier(12) == 2, "nothing was in hand"
    suspects.lives("b")
    assert suspects.earlier(12) == 1, "a rebalance is no death"


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sets(st.integers(0, 40), min_size=1, max_size=4), st.integers(2, 12))
def test_K23_every_killer_is_set_aside_and_nobody_else(killers: set[int], batch: int) -> None:
    """A process that handles batches in order and dies with each killer, played to the end."""
    suspects, committed, set_aside, deaths = Suspects(), 0, set[int](), 0
    while committed < 41:
        owner = f"owner {deaths}"
        begun = Begun(suspects)
        in_hand = range(committed, min(committed + batch, 41))
        if not any(suspects.earlier(offset) for offset in in_hand):
            begun.begin(in_hand)
            if any(offset in killers for offset in in_hand):
                suspects.died(owner, Stretch.around(begun.in_hand))
                deaths += 1
                continue
            begun.end(in_hand)
            committed = in_hand.stop
            continue
        for offset in in_hand:  # one by one
            if suspects.earlier(offset) >= DEATHS:
                set_aside.add(offset)
            else:
                begun.begin([offset])
                if offset in killers:
                    suspects.died(owner, Stretch.around(begun.in_hand))
                    deaths += 1
                    break
            begun.end([offset])
            committed = offset + 1
    assert set_aside == killers
    assert deaths <= DEATHS * len(killers)


def test_only_the_last_end_of_a_partition_is_worth_a_note() -> None:
    begun = Begun()
    begun.begin([1, 2, 3])
    assert begun.with_more([7]) == (1, 7)
    assert not begun.end([2])
    assert begun.end([1, 3])
    assert not begun.end([3]), "said twice"
