"""What is in flight fits into the time that a stop leaves."""

from hypothesis import given, settings
from hypothesis import strategies as st

from quiesce.relay.sizing import LEAST, SHARE, Sizing

SECONDS = st.floats(0.001, 60, allow_nan=False)


@given(
    most=st.integers(1, 5000),
    within=st.floats(0.5, 60),
    measured=st.lists(st.tuples(st.integers(1, 5000), SECONDS), max_size=20),
    waiting=st.integers(0, 5000),
    waited=st.floats(0, 60),
)
@settings(deadline=None)
def test_it_is_never_above_the_limit_and_never_nothing(
    most: int, within: float, measured: list[tuple[int, float]], waiting: int, waited: float
) -> None:
    sizing = Sizing(most, within)
    now = 0.0
    for events, seconds in measured:
        now += seconds
        sizing.answered(now, events, seconds)
    assert min(LEAST, most) <= sizing.allowed(waiting, waited) <= most


@given(
    within=st.floats(1, 40),
    round_trip=st.floats(0, 2),
    pace=st.floats(1, 20_000),
    loads=st.lists(st.floats(0.05, 1), min_size=1, max_size=60),
)
@settings(deadline=None)
def test_whatever_the_load_a_steady_broker_finishes_it_in_time(
    within: float, round_trip: float, pace: float, loads: list[float]
) -> None:
    sizing = Sizing(1000, within)
    now = 0.0
    for load in loads:
        in_flight = max(1, int(load * sizing.allowed()))
        seconds = round_trip + in_flight / pace
        # More than the least is in flight only if all of it can be finished in its share of the stop.
        assert in_flight <= LEAST or seconds <= SHARE * within * 1.001
        now += seconds
        sizing.answered(now, in_flight, seconds)


@given(within=st.floats(1, 40), round_trip=st.floats(0, 0.3), pace=st.floats(20, 20_000), batch=st.integers(1, 1000))
@settings(deadline=None)
def test_claims_that_overlap_are_not_counted_twice(within: float, round_trip: float, pace: float, batch: int) -> None:
    """A relay with two claims open, in front of a broker that works off one event after the other."""
    sizing = Sizing(1000, within)
    now, free, answered_at = 0.0, 0.0, -1.0
    open_claims: list[tuple[float, int, float]] = []
    for _ in range(60):
        in_flight = sum(size for _, size, _ in open_claims)
        size = min(batch, sizing.allowed() - in_flight)
        if len(open_claims) < 2 and size > 0:
            free = max(free, now) + size / pace
            open_claims.append((now, size, free + round_trip))
            # All of it is answered in its share of a stop that comes now, or a round trip later.
            assert in_flight + size <= LEAST or free + round_trip - now <= SHARE * within * 1.1 + 2 * round_trip
            continue
        began, size, done = open_claims.pop(0)
        now = max(now, done)
        sizing.answered(now, size, now - max(began, answered_at))
        answered_at = now


@given(within=st.floats(4, 40), round_trip=st.floats(0.001, 0.5))
@settings(deadline=None)
def test_a_broker_that_is_only_far_away_is_used_to_the_full_after_a_few_round_trips(
    within: float, round_trip: float
) -> None:
    sizing = Sizing(1000, within)
    now = 0.0
    for _ in range(12):
        in_flight = sizing.allowed()
        now += round_trip
        sizing.answered(now, in_flight, round_trip)
    assert sizing.allowed() == 1000


def test_a_broker_that_becomes_slower_is_noticed_before_it_answers() -> None:
    sizing = Sizing(1000, 10.0)
    sizing.answered(1.0, 1000, 0.1)
    assert sizing.allowed() == 1000
    assert sizing.allowed(waiting=1000, waited=0.05) == 1000
    assert sizing.allowed(waiting=1000, waited=10.0) == 600
    assert sizing.allowed(waiting=100, waited=30.0) == 20


def test_old_measurements_are_forgotten_and_the_last_one_is_not() -> None:
    sizing = Sizing(1000, 10.0)
    sizing.answered(0.0, 10, 10.0)
    assert sizing.pace() == 1.0
    sizing.answered(5.0, 1000, 1.0)
    assert sizing.pace() == 1010 / 11
    sizing.answered(20.0, 1000, 1.0)
    assert sizing.pace() == 1000.0


@given(most=st.integers(1, 5000), refused=st.lists(st.integers(1, 5000), max_size=20))
def test_O24_while_nothing_is_known_each_claim_that_is_refused_lets_the_next_be_larger(
    most: int, refused: list[int]
) -> None:
    sizing = Sizing(most, 10.0)
    for events in refused:
        before = sizing.allowed()
        sizing.refused(min(events, before))
        assert before <= sizing.allowed() <= min(most, 2 * before)
    full = sizing.allowed()
    for _ in range(10):
        full = sizing.allowed()
        sizing.refused(full)
    assert sizing.allowed() == min(most, 2 * full) == most


def test_refusals_say_nothing_of_a_pace_that_is_known() -> None:
    sizing = Sizing(1000, 10.0)
    sizing.answered(0.0, 10, 1.0)
    allowed = sizing.allowed()
    sizing.refused(allowed)
    assert sizing.allowed() == allowed == 60
    assert sizing.pace() == 10.0
