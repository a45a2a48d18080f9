"""When a refused event is offered again, and when it is given up."""

from dataclasses import dataclass, field

from quiesce.lifecycle.backoff import Backoff
from quiesce.outbox.outcome import Dead, Outcome, Retry


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Retries with backoff up to `attempts`, then a dead letter. An outage counts none.

    The backoff has full jitter: after a fault that hit many events at once they do not all come back at once.
    """

    attempts: int = 10
    backoff: Backoff = field(default_factory=lambda: Backoff(first=1.0, ceiling=60.0))

    def judge(self, outcome: Outcome, failed_before: int) -> Outcome:
        """The outcome to record: a retry gets its wait, or becomes a dead letter after too many."""
        if not isinstance(outcome, Retry):
            return outcome
        if not outcome.counts:
            return Retry(outcome.reason, self.backoff.draw() * outcome.wait, counts=False)
        failed = failed_before + 1
        if failed >= self.attempts:
            return Dead(f"{outcome.reason} (given up after {failed} attempts)")
        return Retry(outcome.reason, self.backoff.wait(failed))
