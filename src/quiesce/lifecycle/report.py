"""What a shutdown came to: for the log, for people, for the exit code."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import IntEnum
from types import MappingProxyType

from quiesce.lifecycle.events import StillRunning
from quiesce.lifecycle.machine import Machine
from quiesce.lifecycle.phases import Part

LEFT = ("aborted", "handed back", "abandoned")
"""Outcomes of workers that were given up."""


class ExitCode(IntEnum):
    """How the process ends. 75 and 78 are EX_TEMPFAIL and EX_CONFIG of sysexits.h, 70 is EX_SOFTWARE."""

    CLEAN = 0
    FAILED = 1
    HARD_DEADLINE = 70
    """Also where the report foresees it: a task that nobody owns did not end when it was cancelled."""
    ABANDONED = 75
    BAD_CONFIGURATION = 78


@dataclass(frozen=True, slots=True)
class PartReport:
    part: Part
    seconds: float
    bound: float
    """Seconds from its beginning to the instant by which it had to be over."""
    overran: bool


@dataclass(frozen=True, slots=True)
class WorkerReport:
    worker: str
    outcome: str
    seconds: float | None
    """From being told to stop to its end; None where it ended before or never."""
    ended_at: float | None
    """Seconds after T0."""
    error: str | None = None
    """What it raised; of one that was given up, why."""
    figures: str = ""
    """What it says of itself; empty where it says nothing."""


@dataclass(frozen=True, slots=True)
class ResourceReport:
    """`began_at` and `ended_at` are seconds after T0; `ended_at` None means it never came back."""

    resource: str
    part: Part
    outcome: str
    began_at: float
    ended_at: float | None
    undelivered: int = 0
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Abandoned:
    worker: str
    what: str
    count: int


@dataclass(frozen=True, slots=True)
class ShutdownReport:
    """One shutdown. Seconds are measured from T0, the first request to stop; `resources` stand in the
    order in which their closing began."""

    service: str
    reason: str
    seconds: float
    available: float
    """Seconds there were from T0 to the hard deadline."""
    exit_code: int
    parts: Sequence[PartReport]
    workers: Sequence[WorkerReport]
    resources: Sequence[ResourceReport]
    abandoned: Sequence[Abandoned] = ()
    errors: Sequence[str] = ()
    scale: float = 1.0
    """Below 1 where less time was left than the budget allows: every part shrank in proportion."""
    hung: Sequence[StillRunning] = ()
    """What still ran when its bound was over, and where: the last look at each."""

    def with_exit_code(self, code: ExitCode) -> "ShutdownReport":
        """The same report, where something stronger than its own content decides the status."""
        return replace(self, exit_code=int(code))

    def as_dict(self) -> dict[str, object]:
        """Plain values, ready for JSON; durations carry `_seconds`."""
        return {
            "service": self.service,
            "reason": self.reason,
            "duration_seconds": round(self.seconds, 6),
            "available_seconds": round(self.available, 6),
            "scale": round(self.scale, 6),
            "exit_code": self.exit_code,
            "parts": {
                p.part.value: {
                    "duration_seconds": round(p.seconds, 6),
                    "bound_seconds": round(p.bound, 6),
                    "overran": p.overran,
                }
                for p in self.parts
            },
            "workers": [_seconds_named(asdict(w)) for w in self.workers],
            "resources": [_seconds_named(asdict(r)) for r in self.resources],
            "abandoned": [asdict(a) for a in self.abandoned],
            "errors": list(self.errors),
            "hung": [
                {
                    "what": h.what,
                    "name": h.name,
                    "age_seconds": None if h.age is None else round(h.age, 6),
                    "where": h.where,
                    "section": h.section,
                    "holds": h.holds,
                }
                for h in self.hung
            ],
        }

    def table(self) -> str:
        """A few aligned lines for a terminal."""
        lines = [f"{self.service} stopped in {self.seconds:.2f} s of {self.available:g} s: {self.reason}"]
        if self.scale < 1:
            lines.append(f"  only {self.available:.3g} s were left: every part had {self.scale:.0%} of its bound")
        for part in self.parts:
            mark = "  OVERRAN" if part.overran else ""
            lines.append(f"  {part.part.value:<10} {part.seconds:7.3f} s of {part.bound:g} s{mark}")
        for worker in self.workers:
            took = "" if worker.seconds is None else f" in {worker.seconds:.3f} s"
            figures = f" ({worker.figures})" if worker.figures else ""
            lines.append(f"  worker     {worker.worker}: {worker.outcome}{took}{figures}")
        for resource in self.resources:
            extra = f", {resource.undelivered} undelivered" if resource.undelivered else ""
            detail = f" ({resource.detail})" if resource.detail else ""
            lines.append(f"  closed     {resource.resource}: {resource.outcome}{extra}{detail}")
        lines.extend(f"  abandoned  {a.count} {a.what} ({a.worker})" for a in self.abandoned)
        lines.extend(f"  hung       {line_of_hang(h)}" for h in self.hung)
        lines.extend(f"  error      {error}" for error in self.errors)
        return "\n".join([*lines, f"  exit code  {self.exit_code}"])


def line_of_hang(hang: StillRunning) -> str:
    """A hang in one line, for people."""
    age = "" if hang.age is None else f", for {hang.age:.1f} s"
    section = f", in critical section {hang.section}" if hang.section else ""
    holds = f", holds {hang.holds}" if hang.holds else ""
    return f"{hang.what} {hang.name}{age}, at {hang.where}{section}{holds}"


_NAMED = {"seconds": "duration_seconds", "began_at": "began_at_seconds", "ended_at": "ended_at_seconds"}


def _seconds_named(values: Mapping[str, object]) -> dict[str, object]:
    return {_NAMED.get(k, k): round(v, 6) if isinstance(v, float) else v for k, v in values.items()}


def exit_code(*, failed: bool, abandoned: bool) -> ExitCode:
    """The status after an orderly close; the first that holds wins."""
    if failed:
        return ExitCode.FAILED
    return ExitCode.ABANDONED if abandoned else ExitCode.CLEAN


def compose(
    service: str,
    machine: Machine,
    now: float,
    abandoned: Sequence[Abandoned] = (),
    errors: Sequence[str] = (),
    hung: Sequence[StillRunning] = (),
    figures: Mapping[str, str] = MappingProxyType({}),
) -> ShutdownReport:
    """The report as it stands at `now`; parts that are not over yet are counted until then."""
    plan = machine.plan
    assert plan is not None, "a report tells of a stop that was requested"
    t0 = plan.t0
    parts = [
        PartReport(part, state.seconds(now), state.until.remaining(state.began), state.overran(now))
        for part, state in machine.parts.items()
    ]
    ran = [worker for worker in machine.workers.values() if worker.running]
    workers = [
        WorkerReport(
            worker.ask.name,
            worker.outcome or "running",
            worker.seconds,
            None if worker.told_at is None or worker.seconds is None else worker.told_at + worker.seconds - t0,
            worker.error or (worker.abort_cause if worker.outcome in LEFT else None),
            figures.get(worker.ask.name, ""),
        )
        for worker in ran
    ]
    left = [Abandoned(w.ask.name, "iteration", 1) for w in ran if w.outcome in ("aborted", "abandoned")]
    left += [Abandoned(w.ask.name, "iteration handed back", 1) for w in ran if w.outcome == "handed back"]
    left += [Abandoned(name, "start that did not end", 1) for name in machine.left_in_start]
    told = {a.worker for a in abandoned}
    # A worker that said what it left need not be counted a second time for having been aborted.
    everything = [*abandoned, *(a for a in left if a.worker not in told)]
    resources = [
        ResourceReport(
            r.name,
            r.part,
            r.outcome or "closing",
            r.began - t0,
            None if r.ended is None or r.outcome == "overran" else r.ended - t0,
            r.undelivered,
            r.detail,
        )
        for r in machine.closing_order
        if r.began is not None
    ]
    # A closer that was forced, failed or never came back may have torn what it held: not a clean stop.
    torn = [Abandoned(r.resource, f"closing ({r.outcome})", 1) for r in resources if r.outcome != "clean"]
    undelivered = [Abandoned(r.resource, "undelivered messages", r.undelivered) for r in resources if r.undelivered]
    everything += [*torn, *undelivered]
    return ShutdownReport(
        service=service,
        reason=machine.reason or "",
        seconds=now - t0,
        available=plan.available,
        exit_code=exit_code(failed=machine.failed, abandoned=bool(everything)),
        parts=parts,
        workers=workers,
        resources=resources,
        abandoned=everything,
        errors=list(errors),
        scale=plan.scale,
        hung=list(hung),
    )
