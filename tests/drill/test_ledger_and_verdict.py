"""What clients saw, what a SIGKILL explains, and when a drill is good."""

import contextlib
import http.client
import json
from dataclasses import replace

import pytest

from quiesce.drill.audit import Findings
from quiesce.drill.ledger import FailedRequest, Ledger, percentile, split_failed
from quiesce.drill.payment_audit import PaymentFindings, audit_payments
from quiesce.drill.payment_endpoint import Charges, PaymentEndpoint
from quiesce.drill.product_audit import ProductFindings
from quiesce.drill.verdict import Shutdown, Verdict

GOOD = Verdict(
    findings=Findings(10, 20, (), (), 0, 3, (), ()),
    failed_inside=(FailedRequest("7", 1.0, "cut"),),
    failed_outside=(),
    shutdowns=(Shutdown("orders-1", "rolling update", 0.8, 0, 49.0, {"workers": 0.5}),),
    payments=PaymentFindings(5, 2, 1, (), ()),
    products=ProductFindings(7, (), 0, ()),
)


@pytest.mark.parametrize(
    ("share", "expected"), [(0.0, 1), (0.5, 50), (0.501, 51), (0.99, 99), (1.0, 100)], ids=lambda value: f"{value}"
)
def test_percentile_is_a_value_that_was_measured(share: float, expected: float) -> None:
    assert percentile(list(range(100, 0, -1)), share) == expected


def test_percentile_of_nothing() -> None:
    assert percentile([], 0.99) == 0.0


def test_recent_answers_are_those_of_the_window() -> None:
    ledger = Ledger()
    for second in range(10):
        ledger.accept(str(second), float(second), second / 1000)

    assert ledger.recent(9.5, 3.0) == [0.007, 0.008, 0.009]


def test_only_requests_on_a_killed_connection_are_excused() -> None:
    failed = [FailedRequest("1", 5.0, "cut"), FailedRequest("2", 5.0, "cut"), FailedRequest("3", 5.0, "503")]

    inside, outside = split_failed(failed, {"2", "9"})

    assert [request.request for request in inside] == ["2"]
    # Failing at the same instant as a kill is no excuse.
    assert [request.request for request in outside] == ["1", "3"]


def test_good_one_with_duplicates_and_a_cut_request() -> None:
    assert (GOOD.faults(), GOOD.status) == ([], 0)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"findings": Findings(10, 19, (), ("e1",), 0, 0, (), ())}, "1 lost: e1"),
        ({"findings": Findings(10, 19, (), ("e1",), 1, 0, (), ())}, "1 lost (1 of them still in the outbox): e1"),
        ({"findings": Findings(10, 20, ("17",), (), 0, 0, (), ())}, "1 lost: order 17"),
        ({"findings": Findings(10, 20, (), (), 0, 0, ("e2",), ())}, "1 out of order: e2"),
        ({"findings": Findings(10, 20, (), (), 0, 0, (), ("e3",))}, "1 on the topic that no row accounts for: e3"),
        ({"failed_outside": (FailedRequest("8", 2.0, "503"),)}, "no SIGKILL explains: at 2.0 s 503"),
        ({"findings": Findings(10, 20, (), (), 0, 0, (), (), ("18",))}, "1 orders placed twice: 18"),
        ({"unanswered": 2}, "2 requests were never answered"),
        ({"payments": PaymentFindings(5, 1, 1, ("4",), ())}, "1 orders charged twice: 4"),
        (
            {"payments": PaymentFindings(5, 1, 1, (), ("5",))},
            "1 orders charged and not paid, or paid and not",
        ),
        ({"shutdowns": (Shutdown("orders-1", "rolling update", 1.0, 75, 49.0),)}, "orders-1 ended with status 75"),
        ({"products": ProductFindings(5, ("p1",), 0, ())}, "1 product events lost: p1"),
        (
            {"products": ProductFindings(5, (), 2, ("p",))},
            "older than their last event: p; 2 product events",
        ),
        ({"problems": ("orders-2 ended by itself",)}, "orders-2 ended by itself"),
        ({"findings": Findings(0, 0, (), (), 0, 0, (), ())}, "nothing was proven"),
    ],
    ids=[
        *("lost", "waiting", "order", "disorder", "foreign", "failed", "doubled", "unanswered", "charged", "disputed"),
        *("shutdown", "unhandled", "stale", "died", "nothing"),
    ],
)
def test_each_fault_makes_it_fail_and_is_told(change: dict[str, object], told: str) -> None:
    verdict = replace(GOOD, **change)  # type: ignore[arg-type]

    assert verdict.status == 1
    assert told in "; ".join(verdict.faults())


def test_what_still_waits_is_no_fault_where_the_broker_may_have_left_the_group_alone() -> None:
    waiting = replace(GOOD, products=ProductFindings(7, (), 3, ()))

    assert waiting.faults() == ["3 product events still wait for the consumers"]
    assert (replace(waiting, may_wait=True).faults(), replace(waiting, interrupted=True).faults()) == ([], [])


def test_interrupted_before_there_was_anything_to_audit() -> None:
    nothing = Findings(0, 0, (), (), 0, 0, (), ())

    assert replace(GOOD, findings=nothing, shutdowns=(), interrupted=True).status == 130


def test_json_has_the_documented_keys_and_seconds() -> None:
    told = json.loads(json.dumps(GOOD.as_dict()))

    assert told == {
        "accepted": 10,
        "delivered": 20,
        "lost": 0,
        "duplicates": 3,
        "out_of_order": 0,
        "doubled": 0,
        "failed_requests": 0,
        "retried": 1,
        "replayed": 0,
        "payments": {"charged": 5, "repeated": 2, "charged_twice": 0, "disputed": 0},
        "products": {"published": 7, "lost": 0, "waiting": 0, "stale": 0},
        "shutdowns": [
            {
                "replica": "orders-1",
                "reason": "rolling update",
                "seconds": 0.8,
                "exit_code": 0,
                "parts": {"workers": 0.5},
                "why": "",
                "log": None,
            }
        ],
    }


def test_payments_are_compared_with_the_tables() -> None:
    charges = Charges([("1", "a"), ("1", "a"), ("2", "b"), ("3", "c"), ("3", "d")], lost=1)
    charges.made = {"a": ("1", b""), "b": ("2", b""), "c": ("3", b""), "d": ("3", b"")}

    found = audit_payments(charges, {"1", "3", "4"})

    assert found == PaymentFindings(charged=3, repeated=1, lost_answers=1, twice=("3",), disputed=("2", "4"))
    assert not found.clean
    assert audit_payments(Charges(), ()).clean


def test_the_payment_endpoint_charges_once_per_key_and_loses_answers_after_the_charge() -> None:
    def ask(order: int, key: str) -> int:
        connection = http.client.HTTPConnection(payments.url.split("/")[2], timeout=20)
        with contextlib.closing(connection):
            connection.request("POST", "/charges", json.dumps({"order": order}), {"Idempotency-Key": key})
            return connection.getresponse().status

    with PaymentEndpoint(lose_every=2) as payments:
        assert (ask(1, "a"), ask(1, "a"), ask(9, "a"), ask(2, "")) == (201, 200, 422, 422)
        with pytest.raises((OSError, http.client.HTTPException)):
            ask(2, "b")
        assert ask(2, "b") == 200

    assert (payments.charges.charged(), payments.charges.twice(), payments.charges.lost) == ({"1", "2"}, [], 1)
