"""May we get traffic? The one place that knows (R-SHUT-3)."""

from collections.abc import Callable

from quiesce.lifecycle.events import Event, ReadinessChanged
from quiesce.lifecycle.phases import Phase


class Readiness:
    """Ready or not, with a reason. Set by the shell only; health endpoints and metrics read it."""

    def __init__(self, tell: Callable[[Event], None]) -> None:
        self._tell = tell
        self.ready = False
        self.reason = "starting"
        self.phase = Phase.STARTING

    def become_ready(self) -> None:
        self._set(True, "ready")

    def become_not_ready(self, reason: str) -> None:
        self._set(False, reason)

    def explain(self, reason: str) -> None:
        """Says why it is not ready yet, such as a database that does not answer. Readiness stays as it is."""
        if not self.ready:
            self._set(False, reason)

    def _set(self, ready: bool, reason: str) -> None:
        if (ready, reason) != (self.ready, self.reason):
            self.ready, self.reason = ready, reason
            self._tell(ReadinessChanged(ready, reason))
