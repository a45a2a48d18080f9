"""How long lanes of another have waited: the arithmetic, without a server."""

from quiesce.outbox.ports import Takeover
from quiesce.postgres.lane_waits import LaneWaits


def test_who_was_alone_has_taken_over_nothing() -> None:
    assert LaneWaits().owned(range(16), 10.0, silent_one_ended=False) is None


def test_a_lane_waits_from_when_it_was_last_seen_with_another() -> None:
    waits = LaneWaits()
    waits.others_have({1, 2, 3}, 10.0)
    waits.others_have({2, 3}, 10.1)
    assert waits.owned([1, 2], 10.5, silent_one_ended=False) == Takeover(2, 0.5)
    # Only once; and lane 3 is still to come.
    assert waits.owned([1, 2], 11.0, silent_one_ended=False) is None
    assert waits.owned([1, 2, 3], 11.1, silent_one_ended=False) == Takeover(1, 1.0)


def test_lanes_of_one_that_was_silent_wait_since_its_last_sign_of_life() -> None:
    waits = LaneWaits()
    waits.others_have({1, 2}, 20.0)
    waits.heard(17.0)
    # Looked at again, with less precision: it is the same silence.
    waits.heard(18.0)
    assert waits.owned([1, 2], 20.5, silent_one_ended=True) == Takeover(2, 3.5)
    assert waits.silent_since is None


def test_lanes_of_another_than_the_silent_one_are_not_its_own() -> None:
    waits = LaneWaits()
    waits.others_have({1, 2}, 20.0)
    waits.heard(5.0)
    assert waits.owned([1], 20.5, silent_one_ended=False) == Takeover(1, 0.5)
    assert waits.silent_since == 5.0


def test_a_sign_of_life_ends_a_silence() -> None:
    waits = LaneWaits()
    waits.heard(5.0)
    waits.heard(None)
    waits.heard(19.0)
    waits.others_have({1}, 20.0)
    assert waits.owned([1], 20.5, silent_one_ended=True) == Takeover(1, 1.5)
