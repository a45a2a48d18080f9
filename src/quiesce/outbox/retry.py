"""When a refused event is offered again, and when it is given up."""

from dataclasses import dataclass, field

from quiesce.lifecycle.backoff import Backoff
from quiesce.outbox.outcome import Dead, Outcome, Retry


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Retries with backoff up to `attempts`, then a dead letter. Outages never come this far."""

    attempts: int = 10
    backoff: Backoff = field(default_factory=lambda: Backoff(first=1.0, ceiling=60.0))

    def judge(self, outcome: Outcome, failed_before: int) -> Outcome:
        """The outcome to record: a retry gets its wait, or becomes a dead letter after too many."""
        if not isinstance(outcome, Retry):
            return outcome
        failed = failed_before + 1
        if failed >= self.attempts:
            return Dead(f"{outcome.reason} (given up after {failed} attempts)")
        return Retry(outcome.reason, self.backoff.wait(failed))
