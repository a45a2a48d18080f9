"""May we get traffic? The one place that knows (R-SHUT-3)."""

from collections.abc import Callable

from quiesce.lifecycle.events import Event, ReadinessChanged
from quiesce.lifecycle.phases import Phase
from quiesce.lifecycle.ports import ShowsProgress


class Readiness:
    """Ready or not, with a reason. Set by the shell only; health endpoints and metrics read it.

    The shell opens and closes it. While it is open, a worker that is down, or that says why it makes no
    progress, closes it as well: a probe that only asks whether the process exists hides a dead loop for days.
    """

    def __init__(self, tell: Callable[[Event], None]) -> None:
        self._tell = tell
        self._open = False
        self._why = "starting"
        self._progress: dict[str, ShowsProgress] = {}
        self._down: dict[str, str] = {}
        self._stalled: str | None = None
        self.ready = False
        self.reason = "starting"
        self.phase = Phase.STARTING

    def become_ready(self) -> None:
        self._set(True, "ready")

    def become_not_ready(self, reason: str) -> None:
        self._set(False, reason)

    def explain(self, reason: str) -> None:
        """Says why it is not ready yet, such as a database that does not answer. Readiness stays as it is."""
        if not self._open:
            self._set(False, reason)

    def watch(self, worker: str, progress: ShowsProgress) -> None:
        """Asks this worker, with every `look`, whether it makes progress."""
        self._progress[worker] = progress

    def worker_down(self, worker: str, reason: str) -> None:
        """Not ready while this worker does not run, such as between its failure and its restart."""
        self._down[worker] = reason
        self._settle()

    def worker_returned(self, worker: str) -> None:
        """Not ready from here on: nobody told it to stop, and nobody begins it again."""
        self.worker_down(worker, "returned without being told to stop")

    def worker_up(self, worker: str) -> None:
        self._down.pop(worker, None)
        self._settle()

    def look(self, now: float) -> bool:
        """Asks the workers, at `now` on the loop's clock, and returns whether the service is ready."""
        if self._open and self._progress:
            answers = ((name, self._ask(name, worker, now)) for name, worker in self._progress.items())
            self._stalled = next((f"worker {name}: {why}" for name, why in answers if why), None)
            self._settle()
        return self.ready

    @staticmethod
    def _ask(name: str, worker: ShowsProgress, now: float) -> str | None:
        try:
            return worker.why_not_ready(now)
        except BaseException as error:  # noqa: BLE001 - the probe must answer, and a worker that cannot is not ready
            return f"cannot say whether it makes progress: {type(error).__name__}: {error}"

    def _set(self, opened: bool, why: str) -> None:
        self._open, self._why = opened, why
        self._settle()

    def _settle(self) -> None:
        ready, reason = self._open, self._why
        if ready and self._down:
            worker, why = next(iter(self._down.items()))
            ready, reason = False, f"worker {worker}: {why}"
        elif ready and self._stalled is not None:
            ready, reason = False, self._stalled
        if (ready, reason) != (self.ready, self.reason):
            # Silence grows with each look; only the change is told.
            changed = ready != self.ready or not self._open
            self.ready, self.reason = ready, reason
            if changed:
                self._tell(ReadinessChanged(ready, reason))
