"""What the view shows: one look at a running drill, as plain values."""

from dataclasses import dataclass


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
            f"{self.accepted} accepted, {self.failed} failed, backlog {self.backlog} | {self.step} | "
            + ", ".join(str(replica) for replica in self.replicas)
        )
