"""Answers as they come in: a mapping that costs nothing while all is well."""

from uuid import UUID, uuid4

import pytest

from quiesce.outbox.answers import Answers, all_dispatched
from quiesce.outbox.event import ClaimedEvent, PlainEvent
from quiesce.outbox.outcome import DISPATCHED, Dead


def events(count: int) -> list[ClaimedEvent]:
    return [PlainEvent(n, uuid4(), "k", "t", "T", b"", {}) for n in range(count)]


def test_it_is_the_dictionary_that_it_stands_for() -> None:
    given = events(3)
    answers = Answers(given)
    assert dict(answers) == {}
    assert not answers
    answers.acked.append(1)
    assert dict(answers) == {given[1].id: DISPATCHED}
    dead = Dead("too large")
    answers.refused[given[0].id] = dead
    # It is alive: what comes later is seen later.
    assert answers == {given[1].id: DISPATCHED, given[0].id: dead}
    assert len(answers) == 2
    assert given[2].id not in answers
    assert answers.get(given[2].id) is None
    assert repr(answers) == repr(dict(answers))
    with pytest.raises(KeyError):
        answers[UUID(int=1)]


def test_all_dispatched_is_said_of_exactly_the_events_that_were_asked_for() -> None:
    given = events(2)
    answers = Answers(given)
    answers.acked.append(0)
    assert not all_dispatched(answers, given)
    answers.acked.append(1)
    assert all_dispatched(answers, given)
    assert not all_dispatched(answers, given[:1]), "a part of them is another question"
    assert not all_dispatched(dict(answers), given), "of a dictionary nothing is known without a look"
    assert dict(answers) == {one.id: DISPATCHED for one in given}


def test_a_refusal_among_acks_is_not_all() -> None:
    given = events(2)
    answers = Answers(given)
    answers.acked.append(0)
    answers.refused[given[1].id] = Dead("x")
    assert not all_dispatched(answers, given)
    assert len(answers) == len(given)
