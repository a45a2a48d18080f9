"""Reason, origin and waiting in a record's headers."""

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quiesce.inbox.reason import FAILED, Reason
from quiesce.inbox.record import Record
from quiesce.inbox.retry_headers import (
    LONGEST_WAIT,
    NOT_BEFORE,
    ORIGIN_OFFSET,
    ORIGIN_PARTITION,
    ORIGIN_TIME,
    ORIGIN_TOPIC,
    REDRIVES,
    TOPIC,
    TRIES,
    believed,
    came_back,
    cut,
    for_redrive,
    not_before,
    origin,
    redrives,
    tries,
    with_reason,
)

REASON = Reason(FAILED, "builtins.ValueError", "no such product", 3, "orders")
HERE = (TOPIC, b"orders")
OWN = (("id", b"7"), ("type", b"Placed"), ("x", None), ("x", b"\xff"))


def record(topic: str = "orders", headers: tuple[tuple[str, bytes | None], ...] = OWN, at: float = 100.5) -> Record:
    return Record(topic, 2, 41, b"k", b"v", headers, at)


def test_the_origin_is_that_of_the_first_pass_and_the_rest_that_of_the_last() -> None:
    retried = record("orders.retry", with_reason(record(), REASON, "orders.retry", until=200.0), at=150.0)
    assert not_before(retried) == 200.0
    assert tries(retried) == 3
    assert origin(retried) == ("orders", 2, 41)
    why = Reason("undecodable", "", "", 4, "orders")
    dead = record("orders.dead", with_reason(retried, why, "orders.dead"), at=210.0)
    assert origin(dead) == ("orders", 2, 41)
    assert dead.header(ORIGIN_TIME) == "100500"
    assert dead.header("quiesce-reason") == "undecodable"
    assert not_before(dead) is None
    assert dead.headers[: len(OWN)] == OWN, "a header of its own was touched"


def test_K25_headers_of_a_hundred_passes_are_as_many_as_those_of_one() -> None:
    once = passed = record("orders.dead", with_reason(record(), REASON, "orders.dead"))
    for _ in range(100):
        passed = record("orders.retry", with_reason(passed, REASON, "orders.retry", until=1e9))
        passed = record("orders.dead", with_reason(passed, REASON, "orders.dead"))
    assert len(passed.headers) == len(once.headers)


def test_a_redriven_record_begins_anew_and_knows_how_often_it_went() -> None:
    dead = record("orders.dead", with_reason(record(), REASON, "orders.dead"))
    back = record("orders", for_redrive(dead, "orders"))
    assert (tries(back), redrives(back), not_before(back)) == (0, 1, None)
    assert origin(back) == ("orders", 2, 41)
    dead = record("orders.dead", with_reason(back, REASON, "orders.dead"))
    again = record("orders", for_redrive(dead, "orders"))
    assert redrives(again) == 2
    assert again.event_id == "7"
    assert len(again.headers) == len(OWN) + 3


def test_headers_that_a_handler_copied_to_what_it_wrote_mean_nothing_there() -> None:
    retried = record("orders.retry", with_reason(record(), REASON, "orders.retry", until=1e9))
    written = record("invoices", retried.headers)
    assert (origin(written), tries(written), not_before(written)) == (("invoices", 2, 41), 0, None)
    dead = record("invoices.dead", with_reason(written, REASON, "invoices.dead"))
    assert origin(dead) == ("invoices", 2, 41)


FORGED = (
    (ORIGIN_TOPIC, b"payments"),
    (ORIGIN_PARTITION, b"0"),
    (ORIGIN_OFFSET, b"1"),
    (TRIES, b"99"),
    (NOT_BEFORE, b"2000"),
)


def test_headers_that_do_not_name_the_topic_they_were_written_for_mean_nothing() -> None:
    forged = record(headers=(*OWN, *FORGED))
    assert (origin(forged), tries(forged), not_before(forged)) == (("orders", 2, 41), 0, None)


@pytest.mark.parametrize("retry", [lambda source: f"{source}.retry", lambda _: "retry", {"invoices": "x"}.__getitem__])
def test_headers_are_believed_in_the_retry_topic_of_their_origin_alone(retry: Callable[[str], str]) -> None:
    forged = record(headers=(*OWN, HERE, *FORGED, (REDRIVES, b"3")))
    for given_on in (believed(forged, retry), believed(forged, None)):
        assert (origin(given_on), tries(given_on), not_before(given_on)) == (("orders", 2, 41), 0, None)
        assert (given_on.headers[: len(OWN)], given_on.key, given_on.value) == (OWN, b"k", b"v")
        assert redrives(given_on) == 3, "it may have been redriven to its own topic"
    assert not came_back(forged, retry)


def test_a_record_that_came_back_is_given_on_as_it_is() -> None:
    def retry(source: str) -> str:
        return f"{source}.retry"

    postponed = record("orders.retry", with_reason(record(), REASON, "orders.retry", until=200.0))
    assert came_back(postponed, retry)
    assert believed(postponed, retry) is postponed
    assert not came_back(record("invoices.retry", postponed.headers), retry), "copied"
    redriven = record("orders.retry", for_redrive(postponed, "orders.retry", keep_origin=True))
    assert came_back(redriven, retry)


@pytest.mark.parametrize("text", [b"", b"soon", b"-5", "\u0663".encode(), b"9" * 400, b"1.5", None])
def test_a_header_that_makes_no_sense_is_none(text: bytes | None) -> None:
    assert not_before(record(headers=(HERE, (NOT_BEFORE, text)))) is None


def test_a_time_with_a_slip_in_its_unit_holds_no_key_for_centuries() -> None:
    assert not_before(record(headers=(HERE, (NOT_BEFORE, b"999999999999999")))) == 100.5 + LONGEST_WAIT


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.floats(1.0, 4e9))
def test_it_is_never_due_before_its_time(until: float) -> None:
    read = not_before(record(headers=with_reason(record(), REASON, "orders", until=until), at=0.0))
    assert read is not None
    assert until <= read <= until + 0.002


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.text(), st.integers(20, 100))
def test_text_is_cut_between_two_characters(text: str, longest: int) -> None:
    encoded = cut(text, longest)
    assert len(encoded) <= longest
    encoded.decode()
