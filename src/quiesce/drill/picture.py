"""What the view shows: one look at a running drill, as plain values."""

from dataclasses import dataclass

from quiesce.drill.balancer import Balancer
from quiesce.drill.fleet import Fleet
from quiesce.drill.ledger import Ledger, percentile
from quiesce.drill.load import OrderLoad
from quiesce.drill.replica import Replica

WINDOW = 5.0
"""Seconds that the rate and the percentiles look back."""


@dataclass(frozen=True, slots=True)
class ReplicaPicture:
    """`phase` is what the replica itself said last, `reason` why it is not ready."""

    name: str
    state: str
    ready: bool
    phase: str
    reason: str
    connections: int

    def __str__(self) -> str:
        if self.state == "serving":
            return f"{self.name} ready" if self.ready else f"{self.name} not ready ({self.reason})"
        return f"{self.name} {self.state}"


@dataclass(frozen=True, slots=True)
class Picture:
    """Seconds and orders a second; the rate and the percentiles are those of the last five seconds."""

    step: str
    elapsed: float
    planned: float
    rate: float
    p50: float
    p99: float
    accepted: int
    failed: int
    in_flight: int
    backlog: int
    replicas: tuple[ReplicaPicture, ...]

    def line(self) -> str:
        """All of it in one line."""
        return (
            f"{self.rate:.0f} orders/s, p50 {self.p50 * 1000:.0f} ms, p99 {self.p99 * 1000:.0f} ms, "
            f"{self.accepted} accepted, {self.failed} retried, backlog {self.backlog} | {self.step} | "
            + ", ".join(str(replica) for replica in self.replicas)
        )


def take_picture(
    *,
    step: str,
    planned: float,
    ledger: Ledger,
    load: OrderLoad,
    fleet: Fleet,
    balancer: Balancer,
    backlog: int,
) -> Picture:
    """How things stand now."""
    elapsed = load.elapsed
    recent = ledger.recent(elapsed, WINDOW)
    return Picture(
        step=step,
        elapsed=elapsed,
        planned=planned,
        rate=len(recent) / min(WINDOW, max(elapsed, 0.1)),
        p50=percentile(recent, 0.50),
        p99=percentile(recent, 0.99),
        accepted=len(ledger.accepted),
        failed=len(ledger.failed),
        in_flight=load.in_flight,
        backlog=backlog,
        replicas=tuple(_replica(replica, balancer) for replica in fleet.replicas),
    )


def _replica(replica: Replica, balancer: Balancer) -> ReplicaPicture:
    backend = balancer.backend(replica.name)
    if backend is None:
        return ReplicaPicture(replica.name, replica.state, False, "", "", 0)
    health = backend.health
    reason = "" if health.ready else health.reason
    return ReplicaPicture(replica.name, replica.state, backend.eligible, health.phase, reason, len(backend.connections))
