"""What is done behind a record that is not: the arithmetic, against sets."""

from hypothesis import given
from hypothesis import strategies as st

from quiesce.inbox.beyond import Beyond

OFFSETS = st.sets(st.integers(0, 60))
BASES = st.integers(0, 60)


def of(base: int, done: set[int]) -> Beyond:
    end = max(done, default=0) + 1
    return Beyond.all_but(base, end, set(range(end)) - done)


def told(beyond: Beyond) -> set[int]:
    return {offset for offset in range(100) if offset in beyond}


@given(BASES, OFFSETS)
def test_all_but_the_undone_are_done_up_to_the_end(base: int, done: set[int]) -> None:
    beyond = of(base, done)
    assert told(beyond) == {offset for offset in done if offset >= base}
    assert bool(beyond) == bool(told(beyond))
    assert beyond.end == max(told(beyond), default=base - 1) + 1


@given(BASES, BASES, OFFSETS, OFFSETS)
def test_two_together_have_what_either_has_from_the_base_of_the_first_on(
    base: int, other: int, one: set[int], two: set[int]
) -> None:
    both = of(base, one) | of(other, two)
    wanted = told(of(base, one)) | {offset for offset in told(of(other, two)) if offset >= base}
    assert told(both) == wanted


@given(BASES, OFFSETS)
def test_settled_begins_at_the_first_that_is_not_done(base: int, done: set[int]) -> None:
    settled = of(base, done).settled()
    first = base
    while first in done:
        first += 1
    assert settled.base == first
    assert told(settled) == {offset for offset in done if offset >= first}


@given(BASES, OFFSETS)
def test_half_of_it_is_less_and_ends_at_nothing(base: int, done: set[int]) -> None:
    beyond = of(base, done)
    while beyond:
        half = beyond.lower_half()
        assert told(half) < told(beyond)
        beyond = half
