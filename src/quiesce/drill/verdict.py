"""The whole outcome of a drill: findings, failed attempts, payments, shutdowns, and whether that is good."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from quiesce.drill.audit import Findings
from quiesce.drill.ledger import FailedRequest
from quiesce.drill.payment_audit import PaymentFindings
from quiesce.drill.product_audit import ProductFindings


@dataclass(frozen=True, slots=True)
class Shutdown:
    """One replica's orderly end, seen from outside: from SIGTERM until its process was gone. Seconds."""

    replica: str
    reason: str
    seconds: float
    exit_code: int
    budget: float | None
    """Seconds the replica had by its own report; None where it wrote none."""
    parts: Mapping[str, float] = field(default_factory=dict)
    why: str = ""
    """What went wrong, by its own report; empty where nothing did."""
    log: Path | None = None
    """Where its log is kept; None where it ended well."""

    def fault(self) -> str:
        """Its line in the verdict, for one that did not end well."""
        why = f": {self.why}" if self.why else ""
        return f"{self.replica} ended with status {self.exit_code} ({self.reason}){why}" + (
            f"; its log is {self.log}" if self.log else ""
        )

    @property
    def clean(self) -> bool:
        return self.exit_code == 0

    def as_dict(self) -> dict[str, object]:
        return {
            "replica": self.replica,
            "reason": self.reason,
            "seconds": round(self.seconds, 3),
            "exit_code": self.exit_code,
            "parts": {name: round(seconds, 3) for name, seconds in self.parts.items()},
            "why": self.why,
            "log": None if self.log is None else str(self.log),
        }


@dataclass(frozen=True, slots=True)
class Kill:
    """A replica ended by SIGKILL: how many connections were open to it at that instant, and how many the kernel
    still took for it until it was gone."""

    replica: str
    connections: int
    later: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a drill came to. `problems` are what went wrong beside the audit, a line each."""

    findings: Findings
    failed_inside: Sequence[FailedRequest]
    """Attempts that a SIGKILL explains. Each was made again with the same key."""
    failed_outside: Sequence[FailedRequest]
    shutdowns: Sequence[Shutdown]
    unanswered: int = 0
    """Requests without a good answer after all their attempts."""
    replayed: int = 0
    """Requests whose answer was a stored one: an earlier attempt had been carried out, and its answer was cut."""
    payments: PaymentFindings | None = None
    products: ProductFindings | None = None
    kills: Sequence[Kill] = ()
    problems: Sequence[str] = ()
    interrupted: bool = False
    may_wait: bool = False
    """Consumed events may be left at the end: the broker may leave a group without partitions."""
    seconds: float = 0.0
    """Seconds of load."""
    p50: float = 0.0
    p99: float = 0.0
    load_cpu: float = 0.0
    """Share of one core that load and balancer used."""

    def faults(self) -> list[str]:
        """A line for everything that makes this drill fail; none for a good one."""
        found = self.findings
        lines: list[str] = []
        if found.lost:
            waiting = f" ({found.undispatched} of them still in the outbox)" if found.undispatched else ""
            named = _some([*(f"order {order}" for order in found.lost_orders), *found.lost_events])
            lines.append(f"{found.lost} lost{waiting}: {named}")
        if found.out_of_order:
            lines.append(f"{len(found.out_of_order)} out of order: {_some(found.out_of_order)}")
        if found.foreign:
            lines.append(f"{len(found.foreign)} on the topic that no row accounts for: {_some(found.foreign)}")
        if found.doubled_orders:
            lines.append(f"{len(found.doubled_orders)} orders placed twice: {_some(found.doubled_orders)}")
        if self.failed_outside:
            told = [f"at {request.at:.1f} s {request.detail}" for request in self.failed_outside]
            lines.append(f"{len(told)} requests failed that no SIGKILL explains: {_some(told)}")
        if self.unanswered:
            lines.append(f"{self.unanswered} requests were never answered, however often they were sent")
        if self.payments is not None:
            lines += _payment_faults(self.payments)
        if self.products is not None:
            lines += self.products.faults(self.interrupted or self.may_wait)
        lines += [shutdown.fault() for shutdown in self.shutdowns if not shutdown.clean]
        lines += self.problems
        if found.accepted == 0 and not self.interrupted:
            lines.append("no order was accepted, so nothing was proven")
        return lines

    @property
    def status(self) -> int:
        """The exit status: 0 when nothing is wrong, 130 when it was interrupted before there was anything to audit."""
        if self.faults():
            return 1
        return 0 if self.findings.accepted else 130

    def as_dict(self) -> dict[str, object]:
        """Plain values, ready for JSON; durations are seconds."""
        return {
            "accepted": self.findings.accepted,
            "delivered": self.findings.delivered,
            "lost": self.findings.lost,
            "duplicates": self.findings.duplicates,
            "out_of_order": len(self.findings.out_of_order),
            "doubled": len(self.findings.doubled_orders),
            "failed_requests": self.unanswered,
            "retried": len(self.failed_inside) + len(self.failed_outside),
            "replayed": self.replayed,
            "payments": None if self.payments is None else _payments_as_dict(self.payments),
            "products": None if self.products is None else self.products.as_dict(),
            "shutdowns": [shutdown.as_dict() for shutdown in self.shutdowns],
        }


def _payment_faults(found: PaymentFindings) -> list[str]:
    lines = [f"{len(found.twice)} orders charged twice: {_some(found.twice)}"] if found.twice else []
    if found.disputed:
        named = _some(found.disputed)
        lines.append(f"{len(found.disputed)} orders charged and not paid, or paid and not charged: {named}")
    return lines


def _payments_as_dict(found: PaymentFindings) -> dict[str, object]:
    return {
        "charged": found.charged,
        "repeated": found.repeated,
        "charged_twice": len(found.twice),
        "disputed": len(found.disputed),
    }


def _some(names: Sequence[str], most: int = 3) -> str:
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")
