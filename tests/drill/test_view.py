"""What a person sees: plain lines without a terminal, the table at the end, silence when nobody reads."""

import io
import subprocess
import sys
from dataclasses import replace

from rich.console import Console

from quiesce.drill.audit import Findings
from quiesce.drill.ledger import FailedRequest
from quiesce.drill.payment_audit import PaymentFindings
from quiesce.drill.picture import Picture, ReplicaPicture
from quiesce.drill.product_audit import ProductFindings
from quiesce.drill.verdict import Kill, Shutdown, Verdict
from quiesce.drill.view import LiveView, PlainView, closing_line, outcome

PICTURE = Picture(
    step="rolling update 1 of 2",
    elapsed=12.0,
    planned=30.0,
    rate=199.6,
    p50=0.0061,
    p99=0.0234,
    accepted=2400,
    failed=1,
    in_flight=2,
    backlog=7,
    replicas=(
        ReplicaPicture("orders-1", "preStop", False, "running", "", 0),
        ReplicaPicture("orders-2", "serving", False, "running", "no ack for 5 s", 3),
        ReplicaPicture("orders-3", "serving", True, "running", "", 1),
    ),
)
VERDICT = Verdict(
    findings=Findings(2400, 4800, (), (), 0, 37, (), ()),
    failed_inside=(FailedRequest("7", 1.0, "cut"),),
    failed_outside=(),
    shutdowns=(
        Shutdown("orders-1", "rolling update", 0.84, 0, 49.0, {"http": 0.01, "workers": 0.6}),
        Shutdown("orders-2", "ended by itself", 0.0, 3, None),
    ),
    kills=(Kill("orders-3", 4, 2),),
    replayed=1,
    payments=PaymentFindings(60, 17, 15, (), ()),
    products=ProductFindings(150, (), 0, ()),
    seconds=30.0,
    p50=0.006,
    p99=0.023,
)


def drawn(verdict: Verdict) -> str:
    console = Console(file=io.StringIO(), width=110)
    console.print(outcome(verdict))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_line_holds_all_of_the_picture() -> None:
    assert PICTURE.line() == (
        "200 orders/s, p50 6 ms, p99 23 ms, 2400 accepted, 1 retried, backlog 7 | rolling update 1 of 2 | "
        "orders-1 preStop, orders-2 not ready (no ack for 5 s), orders-3 ready"
    )


def test_plain_lines_come_with_their_time_and_not_too_often() -> None:
    output = io.StringIO()
    view = PlainView(Console(file=output, width=40))
    view.tell("orders-1 [starts] on port 1")
    for _ in range(5):
        view.show(PICTURE)

    lines = output.getvalue().splitlines()
    # Neither wrapped nor taken for markup.
    assert lines[0].endswith("s  orders-1 [starts] on port 1")
    assert len(lines) == 2
    assert "backlog 7" in lines[1]


def test_a_terminal_gets_the_live_table() -> None:
    output = io.StringIO()
    view = LiveView(Console(file=output, width=110, force_terminal=True))
    view.show(PICTURE)
    view.tell("orders-1 gets SIGTERM")
    view.close()

    text = output.getvalue()
    for piece in ("orders-1 gets SIGTERM", "no ack for 5 s", "outbox backlog 7", "preStop", "30 at least"):
        assert piece in text


def test_the_table_tells_everything() -> None:
    text = drawn(VERDICT)

    for row in (
        ("orders accepted", "2400", "p50 6 ms, p99 23 ms"),
        ("events delivered", "4800", ""),
        ("lost", "0", "0 orders, 0 events"),
        ("duplicates", "37", "at least once"),
        ("out of order per key", "0", ""),
        ("orders placed twice", "0", ""),
        ("failed requests", "0", "attempts cut: 1 by a SIGKILL, 0 otherwise; 1 of their retries"),
        ("orders charged twice", "0", "of 60 charged; 15 answers of the payment API lost on purpose"),
        ("shutdown of orders-1", "0.84 of 49 s", "rolling update, status 0: http 0.01, workers 0.60"),
        ("shutdown of orders-2", "0.00 s", "ended by itself, status 3, no report"),
        ("SIGKILL of orders-3", "", "4 connections open to it and 2 more until it was gone"),
    ):
        assert any(all(piece in line for piece in row) for line in text.splitlines()), row


def test_events_that_still_wait_are_told_apart() -> None:
    text = drawn(replace(VERDICT, findings=Findings(10, 18, (), ("e1", "e2"), 1, 0, (), ("e9",))))

    assert "0 orders, 2 events, 1 of these still in the outbox" in text
    assert "messages that no row accounts for" in text


def test_the_closing_line() -> None:
    good = replace(VERDICT, shutdowns=VERDICT.shutdowns[:1])

    assert closing_line(good).startswith("PASSED")
    assert closing_line(replace(good, interrupted=True)).startswith("Interrupted. PASSED")
    assert closing_line(VERDICT) == "FAILED: orders-2 ended with status 3 (ended by itself)"


def test_output_that_nobody_reads_any_more_ends_nothing() -> None:
    """As behind `| head -1`. What was asked to be told of it is told once, and printing goes on into nothing."""
    program = (
        "import sys\n"
        "from quiesce.drill.view import DrillConsole, PlainView\n"
        "view = PlainView(DrillConsole(lambda: print('gone', file=sys.stderr)))\n"
        "for _ in range(3): view.tell('x' * 70000)\n"
        "print('end', file=sys.stderr)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        errors = process.stderr.read()
        assert process.wait(30) == 0
    assert errors.split() == ["gone", "end"]
