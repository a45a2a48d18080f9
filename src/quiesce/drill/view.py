"""Showing a drill: a live table on a terminal, plain lines everywhere else, and the table at the end."""

import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from quiesce.drill.picture import Picture
from quiesce.drill.verdict import Shutdown, Verdict

_PLAIN_EVERY = 2.0
_WIDTH_WITHOUT_TERMINAL = 110


class View(Protocol):
    """What a drill tells while it runs."""

    def tell(self, line: str) -> None:
        """Something happened."""

    def show(self, picture: Picture) -> None:
        """How things stand. Called a few times a second."""

    def close(self) -> None:
        """Nothing more is shown."""


class PlainView:
    """A line for whatever happens, and one every two seconds for how things stand."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = time.monotonic()
        self._shown = 0.0

    def tell(self, line: str) -> None:
        self._console.print(
            f"{time.monotonic() - self._began:6.1f} s  {line}", markup=False, highlight=False, soft_wrap=True
        )

    def show(self, picture: Picture) -> None:
        now = time.monotonic()
        if now - self._shown >= _PLAIN_EVERY:
            self._shown = now
            self.tell(picture.line())

    def close(self) -> None:
        pass


class LiveView:
    """A table that is drawn anew, below the lines of what has happened."""

    def __init__(self, console: Console) -> None:
        self._lines = PlainView(console)
        # Drawn when there is something new: a refreshing thread of its own would take time from the load.
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._live.start()

    def tell(self, line: str) -> None:
        self._lines.tell(line)

    def show(self, picture: Picture) -> None:
        self._live.update(_drawn(picture), refresh=True)

    def close(self) -> None:
        self._live.stop()


def open_view(console: Console) -> View:
    """The view that fits what standard output is."""
    return LiveView(console) if console.is_terminal else PlainView(console)


class DrillConsole(Console):
    """Standard output. Where nobody reads it any more, as behind `| head`, it goes silent and says so once.

    Left as it is, rich would end the process in the middle of whatever task is printing.
    """

    def __init__(self, on_gone: Callable[[], None]) -> None:
        # Without a terminal, wide enough for the table.
        super().__init__(width=None if sys.stdout.isatty() else _WIDTH_WITHOUT_TERMINAL)
        self._on_gone = on_gone

    def on_broken_pipe(self) -> None:
        self.quiet = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
        self._on_gone()


def _drawn(picture: Picture) -> Group:
    head = Text(f"{picture.step}   {picture.elapsed:.0f} s of load, {picture.planned:.0f} at least", style="bold")
    figures = Text(
        f"{picture.rate:.0f} orders/s   p50 {picture.p50 * 1000:.0f} ms   p99 {picture.p99 * 1000:.0f} ms   "
        f"{picture.in_flight} in flight   outbox backlog {picture.backlog}   "
        f"{picture.accepted} accepted   {picture.failed} retried"
    )
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("replica", "is", "balancer", "phase", "connections", "reason"):
        table.add_column(title)
    for replica in picture.replicas:
        table.add_row(
            replica.name,
            Text(replica.state, style=_STYLES.get(replica.state, "")),
            "ready" if replica.ready else "out",
            replica.phase,
            str(replica.connections),
            escape(replica.reason),
        )
    return Group(Text(), head, figures, table)


_STYLES = {
    "serving": "green",
    "starting": "cyan",
    "preStop": "yellow",
    "stopping": "yellow",
    "killed": "red",
    "died": "red",
}


def outcome(verdict: Verdict) -> Table:
    """The table at the end."""
    found = verdict.findings
    table = Table(box=box.ROUNDED, title="Audit of the tables and of the topic", title_justify="left")
    table.add_column("what")
    table.add_column("result", justify="right")
    table.add_column("in detail")
    inside, outside = len(verdict.failed_inside), len(verdict.failed_outside)
    waiting = f", {found.undispatched} of these still in the outbox" if found.undispatched else ""
    answers = f"p50 {verdict.p50 * 1000:.0f} ms, p99 {verdict.p99 * 1000:.0f} ms"
    rows: Sequence[tuple[str, str, str, bool]] = (
        ("orders accepted", str(found.accepted), f"in {verdict.seconds:.0f} s, {answers}", True),
        ("events delivered", str(found.delivered), "distinct ones that are on the topic", True),
        (
            "lost",
            str(found.lost),
            f"{len(found.lost_orders)} orders, {len(found.lost_events)} events{waiting}",
            found.lost == 0,
        ),
        ("duplicates", str(found.duplicates), "allowed: at least once", True),
        (
            "out of order per key",
            str(len(found.out_of_order)),
            "by first occurrence",
            not found.out_of_order,
        ),
        (
            "orders placed twice",
            str(len(found.doubled_orders)),
            "each request has a key, which its retries have, too",
            not found.doubled_orders,
        ),
        (
            "failed requests",
            str(verdict.unanswered),
            f"attempts cut: {inside} by a SIGKILL, {outside} otherwise; {verdict.replayed} of their retries were "
            "answered from the store",
            verdict.unanswered + outside == 0,
        ),
        *_payment_rows(verdict),
        *_product_rows(verdict),
    )
    for what, result, detail, good in rows:
        table.add_row(what, Text(result, style="green" if good else "bold red"), detail)
    if found.foreign:
        table.add_row("foreign", Text(str(len(found.foreign)), style="bold red"), "messages that no row accounts for")
    table.add_section()
    for shutdown in verdict.shutdowns:
        table.add_row(*_shutdown_row(shutdown))
    for kill in verdict.kills:
        later = f" and {kill.later} more until it was gone" if kill.later else ""
        table.add_row(f"SIGKILL of {kill.replica}", "", f"{kill.connections} connections open to it{later}")
    return table


def _payment_rows(verdict: Verdict) -> list[tuple[str, str, str, bool]]:
    found = verdict.payments
    if found is None:
        return []
    detail = (
        f"of {found.charged} charged; {found.lost_answers} answers of the payment API lost on purpose, "
        f"{found.repeated} attempts repeated with their key"
    )
    if found.disputed:
        detail += f"; {len(found.disputed)} charged and not paid, or the other way round"
    return [("orders charged twice", str(len(found.twice)), detail, found.clean)]


def _product_rows(verdict: Verdict) -> list[tuple[str, str, str, bool]]:
    found = verdict.products
    if found is None:
        return []
    detail = f"of {found.published} published; {found.waiting} not handled yet"
    if found.waiting and verdict.may_wait:
        detail += ": the embedded broker's group is left without partitions"
    if found.stale:
        detail += f"; {len(found.stale)} products older than their last event"
    return [("product events lost", str(len(found.lost)), detail, found.clean)]


def _shutdown_row(shutdown: Shutdown) -> tuple[str, Text, str]:
    budget = f" of {shutdown.budget:g} s" if shutdown.budget is not None else " s"
    parts = ", ".join(f"{name} {seconds:.2f}" for name, seconds in shutdown.parts.items())
    return (
        f"shutdown of {shutdown.replica}",
        Text(f"{shutdown.seconds:.2f}{budget}", style="green" if shutdown.clean else "bold red"),
        f"{shutdown.reason}, status {shutdown.exit_code}" + (f": {parts}" if parts else ", no report"),
    )


def closing_line(verdict: Verdict) -> str:
    """One line that says how the drill ended."""
    faults = verdict.faults()
    stopped = "Interrupted. " if verdict.interrupted else ""
    if faults:
        return f"{stopped}FAILED: " + "; ".join(faults)
    if verdict.findings.accepted == 0:
        return f"{stopped}Nothing had been ordered, so there is nothing to audit."
    return f"{stopped}PASSED: nothing lost, nothing doubled, nothing out of order, every request answered."
