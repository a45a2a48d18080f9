"""What the clients saw: which orders were accepted, which attempts failed, and how long answers took."""

from bisect import bisect_left
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class FailedRequest:
    """An attempt at a request without a good answer.

    `request` is its `X-Request-Id`, which each attempt has anew; `at` the seconds after the load began.
    """

    request: str
    at: float
    detail: str


@dataclass(slots=True)
class Ledger:
    """Written by the load, read by the view and by the audit. Only a 201 makes an order accepted."""

    accepted: list[str] = field(default_factory=list)
    """Ids of orders as the service gave them, in the order of the answers; one that came twice stands twice."""
    failed: list[FailedRequest] = field(default_factory=list)
    """Attempts. The request was sent again with the same key."""
    unanswered: list[FailedRequest] = field(default_factory=list)
    """The last attempts of requests that were given up."""
    replayed: int = 0
    """Answers that were stored ones: an earlier attempt had been carried out."""
    answered_at: list[float] = field(default_factory=list)
    """Seconds after the load began, ascending, one per accepted order."""
    latencies: list[float] = field(default_factory=list)
    """Seconds from the instant a request was due to its answer, one per accepted order. Counted from the due
    time, so that a load generator that is late hides nothing."""

    def accept(self, order: str, at: float, latency: float) -> None:
        self.accepted.append(order)
        self.answered_at.append(at)
        self.latencies.append(latency)

    def fail(self, request: str, at: float, detail: str) -> None:
        self.failed.append(FailedRequest(request, at, detail))

    def give_up(self) -> None:
        """The attempt that failed last was the last of its request."""
        self.unanswered.append(self.failed[-1])

    def recent(self, now: float, window: float) -> Sequence[float]:
        """The latencies of the answers of the last `window` seconds."""
        return self.latencies[bisect_left(self.answered_at, now - window) :]


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of the values do not exceed; 0 of nothing."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]


def split_failed(
    failed: Sequence[FailedRequest], excused: Collection[str]
) -> tuple[list[FailedRequest], list[FailedRequest]]:
    """The failed attempts that a SIGKILL explains, and the others.

    Args:
        excused: ids of requests whose connection was open to a replica when it was killed, or that a dead
            replica refused before the balancer noticed.
    """
    inside = [request for request in failed if request.request in excused]
    outside = [request for request in failed if request.request not in excused]
    return inside, outside
