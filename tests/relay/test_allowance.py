"""What is told of how many events may be in flight."""

import logging

import pytest

from quiesce.relay.allowance import Allowance
from quiesce.relay.progress import Progress
from quiesce.relay.settings import RelaySettings


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "quiesce.relay")
    return caplog


@pytest.fixture
def allowance() -> Allowance:
    return Allowance(RelaySettings(max_in_flight=1000), 20.0, Progress())


def test_a_pace_that_swings_is_told_once(allowance: Allowance, told: pytest.LogCaptureFixture) -> None:
    for turn in range(10_000):
        allowance.tell(499 if turn % 2 else 1000, turn * 0.1)
    assert len(told.messages) == 1
    assert "at most 499 events in flight" in told.messages[0]


def test_a_broker_that_has_become_fast_again_is_told(allowance: Allowance, told: pytest.LogCaptureFixture) -> None:
    allowance.tell(1000, 0.0)
    assert told.messages == []
    allowance.tell(10, 1.0)
    allowance.tell(20, 10.0)
    allowance.tell(900, 69.9)
    assert len(told.messages) == 1
    allowance.tell(900, 70.0)
    allowance.tell(900, 71.0)
    assert len(told.messages) == 2
    assert "at most 900 events in flight" in told.messages[1]
    # It is slow again, and that is told at once.
    allowance.tell(10, 71.1)
    assert len(told.messages) == 3
