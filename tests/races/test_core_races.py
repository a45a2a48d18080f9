"""Ten thousand lives of a service on the pure core: `make races`."""

import pytest
from hypothesis import HealthCheck, given, settings
from played_lives import Life, lives, play_and_check

SCHEDULES = 10_000


@pytest.mark.races
@pytest.mark.timeout(900)
@settings(max_examples=SCHEDULES, deadline=None, suppress_health_check=list(HealthCheck))
@given(lives)
def test_ten_thousand_schedules_keep_the_order_and_end(life: Life) -> None:
    play_and_check(life)
