"""Nothing is sent behind an event of its key that is not, whatever becomes of its topic meanwhile."""

from itertools import product
from uuid import uuid4

from hypothesis import given
from hypothesis import strategies as st

from quiesce.kafka.waiting_keys import WaitingKeys
from quiesce.outbox.event import ClaimedEvent, PlainEvent
from quiesce.outbox.outcome import Dead, Retry

WRONG = Retry("LEADER_NOT_AVAILABLE: gone", counts=False)


def event(position: int, key: str = "k", topic: str = "t") -> ClaimedEvent:
    return PlainEvent(position, uuid4(), key, topic, "Happened", b"{}", {})


def judged(keys: WaitingKeys, events: list[ClaimedEvent], *wrong: ClaimedEvent) -> list[int]:
    """Judges a call that was made before; returns the positions of what is not sent."""
    _, refusals = keys.judged(events, [(one, WRONG) for one in wrong])
    return [one.position for one, _ in refusals]


def test_O5_what_is_behind_a_retry_of_its_key_in_the_same_call_waits_too() -> None:
    keys = WaitingKeys()
    one, two, three, other, elsewhere = event(1), event(2), event(3), event(4, "other"), event(5, topic="other")
    keys.called()
    call, refusals = keys.judged([one, two, three, other, elsewhere], [(one, WRONG)])
    assert [one for one, _ in refusals] == [one, two, three]
    assert all(isinstance(outcome, Retry) and not outcome.counts for _, outcome in refusals)
    assert call.waiting == {("t", "k"): 1}


def test_a_dead_letter_holds_nothing_here() -> None:
    keys = WaitingKeys()
    one, two = event(1), event(2)
    keys.called()
    _, refusals = keys.judged([one, two], [(one, Dead("MSG_SIZE_TOO_LARGE"))])
    assert [event for event, _ in refusals] == [one]


def test_O6_a_dead_letter_holds_its_key_where_the_stores_policy_says_so() -> None:
    keys = WaitingKeys()
    keys.dead_holds_key = lambda topic: topic == "strict"
    one, two, three, four = event(1, topic="strict"), event(2, topic="strict"), event(3), event(4)
    keys.called()
    dead = Dead("MSG_SIZE_TOO_LARGE")
    _, refusals = keys.judged([one, two, three, four], [(one, dead), (three, dead)])
    assert [event for event, _ in refusals] == [one, two, three]
    assert refusals[0][1] == refusals[2][1] == dead
    assert isinstance(refusals[1][1], Retry)


def test_O5_a_call_that_was_made_before_the_caller_knew_is_held_back() -> None:
    keys = WaitingKeys()
    one, two, three = event(1), event(2), event(3)
    keys.called()
    first, _ = keys.judged([one], [(one, WRONG)])
    keys.called()
    # The topic is well again; the first call ends before the second is judged.
    keys.ended(first)
    assert judged(keys, [two]) == [2]
    # Whoever calls from now on has heard of the first. The second has not ended yet.
    keys.called()
    assert judged(keys, [three]) == [3]


def test_what_waits_does_not_hold_the_event_it_waits_for() -> None:
    keys = WaitingKeys()
    one, two = event(1), event(2)
    keys.called()
    first, _ = keys.judged([one], [(one, WRONG)])
    keys.called()
    second, _ = keys.judged([two], [])
    keys.ended(first)
    keys.called()
    assert judged(keys, [one]) == []
    keys.ended(second)


def test_a_call_that_comes_to_nothing_holds_up_no_forgetting() -> None:
    keys = WaitingKeys()
    one = event(1)
    keys.called()
    keys.called()
    first, _ = keys.judged([one], [(one, WRONG)])
    keys.ended(first)
    keys.dropped()
    keys.called()
    assert judged(keys, [event(2)]) == []


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("tu"), st.booleans()), max_size=30))
def test_of_each_key_a_first_stretch_is_sent_and_nothing_behind_a_retry(given_: list[tuple[str, str, bool]]) -> None:
    keys = WaitingKeys()
    events = [event(position, key, topic) for position, (key, topic, _) in enumerate(given_)]
    wrong = [one for one, (_, _, is_wrong) in zip(events, given_, strict=True) if is_wrong]
    keys.called()
    held = set(judged(keys, events, *wrong))
    for key, topic in product("ab", "tu"):
        flags = [one.position in held for one in events if (one.aggregate_id, one.topic) == (key, topic)]
        assert flags == sorted(flags)
