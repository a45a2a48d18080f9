"""The delivery reports of one call: each counted once, for the call and the event that it is about."""

from collections.abc import Callable
from typing import cast
from uuid import uuid4

from confluent_kafka import KafkaError, Message

from quiesce.kafka.flight import Flight, Reports
from quiesce.outbox.event import ClaimedEvent, PlainEvent
from quiesce.outbox.outcome import DISPATCHED, Dead, Outcome

REPORT = cast(Message, None)
"""An ack is counted without a look at it."""


def events(count: int) -> list[PlainEvent]:
    return [PlainEvent(n, uuid4(), "k", "t", "Happened", b"", {}) for n in range(count)]


def judge(error: KafkaError, _: Message, __: ClaimedEvent) -> tuple[Outcome | None, Callable[[], None] | None]:
    return (Dead("too large") if error.code() == KafkaError.MSG_SIZE_TOO_LARGE else None), None


def begin(count: int, reports: Reports) -> Flight:
    return Flight(judge, events(count), reports)


async def ended(flight: Flight) -> bool:
    return await flight.wait(0.0)


async def test_a_call_ends_with_its_last_report_in_whatever_order_they_come() -> None:
    flight = begin(3, Reports())
    for place in (2, 0):
        flight.reports[place](None, REPORT)
    flight.handed_over()
    assert flight.spare() is None
    assert [event.position for event in flight.unanswered] == [1]
    flight.reports[1](None, REPORT)
    assert flight.answered
    assert flight.outcomes.all_dispatched
    assert not await ended(flight), "whoever serves the reports ends the call, on the loop"
    flight.finish()
    assert await ended(flight)


async def test_what_a_refusal_sets_off_finds_its_outcome_noted() -> None:
    """It may end the call, from the other thread, in that very instant."""
    seen: list[Outcome | None] = []

    def judge_and_end(_: KafkaError, __: Message, ___: ClaimedEvent) -> tuple[Outcome, Callable[[], None]]:
        return Dead("forbidden"), lambda: seen.append(flight.outcomes.get(flight.events[0].id))

    flight = Flight(judge_and_end, events(1), Reports())
    flight.reports[0](KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED), REPORT)
    assert seen == [Dead("forbidden")]


async def test_a_call_whose_reports_all_came_before_the_last_hand_over_ends_with_it() -> None:
    flight = begin(2, Reports())
    for report in flight.reports:
        report(None, REPORT)
    assert not flight.answered, "more may be handed over"
    flight.handed_over()
    assert await ended(flight)


async def test_refusals_count_as_answers_and_lost_ones_have_no_outcome() -> None:
    flight = begin(4, Reports())
    one, two, three, four = flight.events
    flight.refuse(one.id, Dead("no such topic"))
    flight.handed_over()
    flight.reports[1](None, REPORT)
    flight.reports[2](KafkaError(KafkaError.MSG_SIZE_TOO_LARGE), REPORT)
    flight.reports[3](KafkaError(KafkaError._PURGE_QUEUE), REPORT)
    assert flight.answered
    assert dict(flight.outcomes) == {one.id: Dead("no such topic"), two.id: DISPATCHED, three.id: Dead("too large")}
    assert list(flight.unanswered) == [four]


async def test_reports_are_used_again_once_all_have_come() -> None:
    reports = Reports()
    first = begin(2, reports)
    for report in first.reports[:2]:
        report(None, REPORT)
    first.handed_over()
    assert first.spare() is reports
    # The next call is longer, and gets what is there and one more.
    second = begin(3, reports)
    assert list(second.reports[:2]) == list(first.reports[:2])
    second.handed_over()
    for report in second.reports[:3]:
        report(None, REPORT)
    assert second.outcomes.all_dispatched
    assert len(first.outcomes) == 2, "nothing of it is told to the call before"


async def test_a_report_that_comes_after_its_call_has_ended_is_nobody_elses() -> None:
    reports = Reports()
    flight = begin(2, reports)
    flight.reports[0](None, REPORT)
    flight.handed_over()
    flight.finish()
    assert await ended(flight)
    assert flight.spare() is None, "one of its reports may yet come"
    other = begin(2, Reports())
    flight.reports[1](None, REPORT)
    assert len(flight.outcomes) == 2
    assert len(other.outcomes) == 0


async def test_a_shorter_call_takes_no_report_beyond_its_events() -> None:
    reports = Reports()
    long = begin(3, reports)
    long.handed_over()
    for report in long.reports[:3]:
        report(None, REPORT)
    short = begin(1, reports)
    short.handed_over()
    short.reports[0](None, REPORT)
    assert short.answered
