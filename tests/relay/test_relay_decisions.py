"""The relay's decisions, without any waiting."""

from math import inf
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scripted_outbox import MemoryBroker, MemoryStore, event

from quiesce.errors import SettingsError
from quiesce.lifecycle.backoff import Backoff
from quiesce.outbox.outcome import DISPATCHED, Dead, Outcome, Retry
from quiesce.outbox.retry import RetryPolicy
from quiesce.relay import Relay
from quiesce.relay.held_keys import HeldKeys, first_places
from quiesce.relay.intake import QUICK_LOOKS, Pace, room
from quiesce.relay.patience import GivingUp, reserve, stalled_at
from quiesce.relay.settings import RelaySettings
from quiesce.relay.verdicts import judge

POLICY = RetryPolicy(attempts=3, backoff=Backoff(first=1.0, draw=lambda: 1.0))


@given(
    st.integers(1, 50), st.integers(1, 50), st.integers(1, 4), st.integers(0, 5), st.integers(0, 60), st.integers(0, 60)
)
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_room_never_lets_more_in_flight_than_allowed(
    batch: int, max_in_flight: int, max_claims: int, open_claims: int, in_flight: int, allowed: int
) -> None:
    terms = RelaySettings(batch=batch, max_in_flight=max_in_flight, max_claims=max_claims)
    limit = room(terms, open_claims, in_flight, allowed)
    assert 0 <= limit <= batch
    assert limit == 0 or (in_flight + limit <= min(max_in_flight, allowed) and open_claims < max_claims)
    # It is not shy either: an idle relay takes what it can.
    assert room(terms, 0, 0, 1000) == min(batch, max_in_flight)


def test_pace_looks_again_at_once_while_there_is_more() -> None:
    pace = Pace(0.02)
    assert pace.after(found=500, asked=500) == 0.0
    assert pace.after(found=3, asked=500) == 0.02
    # While events keep coming an empty look means little; then each one doubles the wait.
    assert {pace.after(0, 500) for _ in range(QUICK_LOOKS)} == {0.02}
    assert [pace.after(0, 500) for _ in range(5)] == [0.02, 0.04, 0.08, 0.1, 0.1]
    pace.hurry()
    assert {pace.after(0, 500) for _ in range(QUICK_LOOKS)} == {0.02}


@given(st.floats(0.0001, 0.1), st.integers(1, 100))
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_idle_never_waits_longer_than_a_tenth_of_a_second(poll_interval: float, looks: int) -> None:
    pace = Pace(poll_interval)
    assert all(pace.after(0, 10) <= 0.1 for _ in range(looks))


@pytest.mark.parametrize(
    ("allowed", "kept"), [(20.0, 2.0), (10.0, 1.5), (1.0, 0.2), (0.2, 0.1), (0.0, 0.0), (inf, 2.0)]
)
def test_reserve(allowed: float, kept: float) -> None:
    assert reserve(allowed) == pytest.approx(kept)


@given(st.floats(0, 1000), st.floats(0.1, 100))
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_steps_of_giving_up_fit_into_the_time_there_is(seconds: float, store_bound: float) -> None:
    steps = GivingUp.within(seconds, store_bound)
    assert steps.discard + steps.settle + steps.free <= 0.951 * seconds
    assert steps.settle <= store_bound


def test_silence_is_counted_from_the_last_answer() -> None:
    assert stalled_at(None, 5.0, 10.0) is None
    assert stalled_at(7.0, None, 10.0) == 17.0
    assert stalled_at(7.0, 5.0, 10.0) == 17.0
    assert stalled_at(7.0, 9.0, 10.0) == 19.0
    # Answers to others do not keep one claim waiting for ever.
    assert stalled_at(7.0, 99.0, 10.0) == 27.0


def test_O9_only_what_was_published_and_answered_gets_an_outcome() -> None:
    one, two, three, four = (event(n, f"k{n}") for n in range(4))
    answers: dict[UUID, Outcome] = {
        one.id: DISPATCHED,
        two.id: Retry("UNKNOWN_TOPIC"),
        four.id: Dead("MSG_SIZE_TOO_LARGE"),
        event(99).id: DISPATCHED,
    }
    verdicts = judge([one, two, three, four], answers, POLICY)
    assert verdicts.outcomes == {
        one.id: DISPATCHED,
        two.id: Retry("UNKNOWN_TOPIC", 1.0),
        four.id: Dead("MSG_SIZE_TOO_LARGE"),
    }
    assert (verdicts.dispatched, verdicts.unanswered, verdicts.refused) == (1, 1, {"k1": 1})


def test_O8_an_outage_of_a_part_burns_no_attempt_and_never_makes_a_dead_letter() -> None:
    for failed_before in (0, 2, 99):
        one = event(1, "k", attempts=failed_before)
        verdicts = judge([one], {one.id: Retry("LEADER_NOT_AVAILABLE: gone", 8.0, counts=False)}, POLICY)
        assert verdicts.outcomes == {one.id: Retry("LEADER_NOT_AVAILABLE: gone", 8.0, counts=False)}
        assert verdicts.refused == {"k": 1}


@given(st.floats(0, 0.999), st.integers(0, 8))
@settings(deadline=None)
def test_the_wait_before_a_retry_has_full_jitter(drawn: float, failed_before: int) -> None:
    policy = RetryPolicy(attempts=20, backoff=Backoff(first=1.0, ceiling=60.0, draw=lambda: drawn))
    retry = policy.judge(Retry("UNKNOWN_TOPIC"), failed_before)
    assert retry == Retry("UNKNOWN_TOPIC", drawn * min(60.0, 2.0**failed_before))
    assert policy.judge(Retry("no leader", 8.0, counts=False), failed_before) == Retry(
        "no leader", drawn * 8.0, counts=False
    )


def test_reasons_are_counted_by_the_name_they_begin_with() -> None:
    one, two, three, four = (event(n, f"k{n}") for n in range(4))
    answers: dict[UUID, Outcome] = {
        one.id: Retry("LEADER_NOT_AVAILABLE: partition 1", counts=False),
        two.id: Retry("LEADER_NOT_AVAILABLE: partition 2", counts=False),
        three.id: Dead("cannot be given to Kafka: no"),
        four.id: DISPATCHED,
    }
    assert judge([one, two, three, four], answers, POLICY).reasons == {"LEADER_NOT_AVAILABLE": 2, "other": 1}


def test_O6_a_dead_letter_holds_its_key_where_the_stores_policy_says_so() -> None:
    one = event(1, "k")
    answers: dict[UUID, Outcome] = {one.id: Dead("MSG_SIZE_TOO_LARGE")}
    assert not judge([one], answers, POLICY).refused
    assert judge([one], answers, POLICY, lambda topic: topic == "orders").refused == {"k": 1}


def test_a_retry_too_many_is_a_dead_letter_and_holds_no_key() -> None:
    last = event(1, "k", attempts=2)
    verdicts = judge([last], {last.id: Retry("UNKNOWN_TOPIC")}, POLICY)
    assert verdicts.outcomes == {last.id: Dead("UNKNOWN_TOPIC (given up after 3 attempts)")}
    assert not verdicts.refused


def test_O5_a_refused_key_is_held_until_a_claim_has_begun_after_its_refusal_was_recorded() -> None:
    held = HeldKeys()
    later = event(8, "a")
    held.claiming()
    held.refused({"a": 7})
    assert held.holds(later)
    assert not held.holds(event(8, "b"))
    held.claiming()
    # That claim began before the refusal is recorded: it may have seen the key free.
    held.recorded({"a": 7})
    assert held.holds(later)
    held.claiming()
    assert not held.holds(later)


def test_a_key_refused_twice_is_held_until_both_are_recorded() -> None:
    held = HeldKeys()
    later = event(8, "a")
    held.refused({"a": 6})
    held.refused({"a": 7})
    held.recorded({"a": 6})
    held.claiming()
    assert held.holds(later)
    held.recorded({"a": 7})
    held.claiming()
    assert not held.holds(later)


def test_what_is_left_out_does_not_hold_the_event_it_waits_for() -> None:
    held = HeldKeys()
    held.refused({"a": 8})
    assert not held.holds(event(7, "a")), "or each would keep the other back for ever"
    assert not held.holds(event(8, "a"))
    assert held.holds(event(9, "a"))


def test_a_key_is_held_from_its_first_place_on() -> None:
    assert first_places([event(5, "a"), event(3, "a"), event(4, "b")]) == {"a": 3, "b": 4}


@pytest.mark.parametrize(
    ("terms", "text"),
    [
        ({"batch": 0}, "batch: got 0"),
        ({"max_in_flight": True}, "max_in_flight: got True"),
        ({"max_claims": 1.5}, "max_claims: got 1.5"),
        ({"poll_interval": 0.5}, "poll_interval: got 0.5, takes seconds, at most 0.1"),
        ({"publish_bound": 0}, "publish_bound: got 0"),
        ({"store_bound": inf}, "store_bound: got inf"),
        ({"bound": -1}, "bound: got -1"),
        ({"on_drain": "stop"}, "on_drain: got 'stop'"),
        ({"after": "pools"}, "after: got 'pools'"),
    ],
)
def test_wrong_terms_are_refused_by_name(terms: dict[str, object], text: str) -> None:
    with pytest.raises(SettingsError, match=text):
        Relay(MemoryStore(), MemoryBroker(), **terms)  # type: ignore[arg-type]


def test_a_relay_brings_its_resources_in_the_order_of_opening() -> None:
    store, broker = MemoryStore(), MemoryBroker()
    assert list(Relay(store, broker).resources) == [store, broker]
