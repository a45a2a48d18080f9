"""An event that is given up for good is told, and thousands are told as one."""

import logging
from uuid import UUID

import pytest

from quiesce.outbox.event import PlainEvent
from quiesce.relay.letter_log import AGAIN_AFTER, Letter, LetterLog

REASON = "MSG_SIZE_TOO_LARGE: too large for the topic"


def one_of(topic: str, number: int = 1) -> PlainEvent:
    return PlainEvent(number, UUID(int=number), "jane@doe", topic, "Placed", b"secret", {})


def letters(number: int, topic: str = "orders") -> list[Letter]:
    return [(one_of(topic, one), REASON) for one in range(number)]


def test_one_of_like_ones_is_named_a_minute_and_the_others_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    told = LetterLog("relay")
    with caplog.at_level(logging.WARNING, "quiesce.relay"):
        told.tell(letters(1000), 10.0)
        told.tell(letters(1000), 11.0)
        told.tell(letters(5, topic="bills"), 12.0)
        told.tell(letters(1), 10.0 + AGAIN_AFTER)
    first, other, later = [record.getMessage() for record in caplog.records]
    assert str(letters(1)[0][0].id) in first
    assert "'orders'" in first
    assert REASON in first
    assert "quiesce outbox dead" in first
    assert "'bills'" in other
    assert "1999 more" in later


def test_neither_keys_nor_payloads_are_shown_nor_texts_without_end(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "quiesce.relay"):
        LetterLog("relay").tell([(one_of("t" * 9999), "x" * 9999)], 1.0)
    (line,) = [record.getMessage() for record in caplog.records]
    assert "jane" not in line
    assert "secret" not in line
    assert len(line) < 1000


def test_topics_without_end_take_no_memory_without_end(caplog: pytest.LogCaptureFixture) -> None:
    told = LetterLog("relay")
    for number in range(5000):
        told.tell(letters(1, topic=f"topic {number}"), 1.0)
    assert len(told._told) <= 1000
