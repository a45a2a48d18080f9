"""How far a relay has come, for whoever asks: readiness shows progress, not existence."""

from dataclasses import dataclass


@dataclass(slots=True)
class Progress:
    """Written by the relay, read by health checks and metrics. Instants are those of the loop's clock."""

    last_ack_at: float | None = None
    """When the broker last answered for any event."""
    waiting_since: float | None = None
    """Since when claimed events have waited for an answer without getting any; None while none wait."""
    in_flight: int = 0
    """Events claimed and not settled."""
    allowed: int = 0
    """How many events may be in flight now, so that a stop can finish them all."""
    within: float | None = None
    """Seconds that a stop has for them; None before the relay ran."""
    pace: float | None = None
    """Events a second, at least, that the broker answers; None before anything is measured."""
    outage: str | None = None
    """`broker` or `database` while one is away."""
    outage_since: float | None = None
    """Since when it is away."""
    unmarked: int = 0
    """Events that were acked and could not be marked, so they come again: duplicates, in total."""
    faults: int = 0
    """Unexpected errors, in total."""

    def silent_for(self, now: float) -> float:
        """Seconds since which events have waited without any answer; 0 while all is well."""
        return 0.0 if self.waiting_since is None else max(0.0, now - self.waiting_since)

    def standing_still_for(self, now: float) -> float:
        """Seconds since which nothing has moved though something should: no answer, or a server away."""
        away = 0.0 if self.outage_since is None else max(0.0, now - self.outage_since)
        return max(self.silent_for(now), away)

    def claimed(self, now: float) -> None:
        if self.waiting_since is None:
            self.waiting_since = now

    def answered(self, now: float, *, others_wait: bool) -> None:
        self.last_ack_at = now
        self.waiting_since = now if others_wait else None

    def nothing_waits(self) -> None:
        self.waiting_since = None
