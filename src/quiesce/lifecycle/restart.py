"""Whether a worker that failed begins again, and after what wait."""

from collections import deque
from dataclasses import dataclass, field

from quiesce.errors import SettingsError
from quiesce.lifecycle.backoff import Backoff


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """Begins a failed worker again after a wait that doubles; gives up when it fails too often.

    Args:
        failures: with this many failures `within` so many seconds the service stops, as failed.
        within: seconds.
        backoff: the waits. The more failures lie within the window, the longer.

    Raises:
        SettingsError: a value that no service could keep.
    """

    failures: int = 5
    within: float = 300.0
    backoff: Backoff = field(default_factory=lambda: Backoff(first=0.5, ceiling=30.0))

    def __post_init__(self) -> None:
        values: dict[str, object] = {"failures": self.failures, "within": self.within}
        match values["failures"]:
            case bool():
                pass
            case int(count) if count >= 1:
                values.pop("failures")
        match values["within"]:
            case bool():
                pass
            case int(seconds) | float(seconds) if seconds > 0:
                values.pop("within")
        for name, value in values.items():
            takes = "a whole number, 1 or more" if name == "failures" else "seconds, more than 0"
            raise SettingsError(f"restart {name}: got {value!r}, takes {takes}")


class Failures:
    """The failures of one worker under its policy. Instants are seconds of the service's clock."""

    def __init__(self, policy: Restart) -> None:
        self.policy = policy
        self._instants: deque[float] = deque()

    @property
    def count(self) -> int:
        """Failures within the window."""
        return len(self._instants)

    def add(self, now: float) -> float | None:
        """One more failure: seconds to wait before it begins again, or None to give up."""
        self._instants.append(now)
        while self._instants[0] <= now - self.policy.within:
            self._instants.popleft()
        if self.count >= self.policy.failures:
            return None
        return self.policy.backoff.wait(self.count)
