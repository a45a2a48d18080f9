"""What was measured, beside what was promised."""

import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value with its target.

    Args:
        key: its name in the JSON object.
        says: what it is, for people.
        value: in `unit`.
        target: it should be below this; None where nothing was promised.
        samples: the single values behind it.
        bare: those they were compared with.
    """

    key: str
    says: str
    value: float
    unit: str
    target: float | None = None
    samples: tuple[float, ...] = ()
    bare: tuple[float, ...] = ()

    @property
    def passed(self) -> bool | None:
        """Whether the target is kept; None without one."""
        return None if self.target is None else self.value < self.target

    def line(self) -> str:
        verdict = {True: "pass", False: "MISSED", None: ""}[self.passed]
        target = "" if self.target is None else f"under {self.target:g} {self.unit}"
        return f"{self.says:<64} {f'{self.value:.4g} {self.unit}':>16}  {target:<18} {verdict}".rstrip()

    def as_json(self) -> dict[str, Any]:
        return {
            "value": round(self.value, 6),
            "unit": self.unit,
            "target": self.target,
            "passed": self.passed,
            "samples": [round(sample, 3) for sample in self.samples],
            "bare": [round(sample, 3) for sample in self.bare],
        }


@dataclass(frozen=True, slots=True)
class Machine:
    """Where it was measured. A figure from a busy machine says little."""

    cores: int
    load_before: float
    load_after: float

    @property
    def busy(self) -> bool:
        return max(self.load_before, self.load_after) > self.cores * 0.75

    def line(self) -> str:
        said = f"{self.cores} cores, load {self.load_before:.2f} before and {self.load_after:.2f} after"
        return said + (": busy, so the figures of time are too high" if self.busy else "")


def load() -> float:
    """The load of the last minute."""
    return os.getloadavg()[0]


def outcome(figures: Sequence[Figure], machine: Machine) -> dict[str, Any]:
    """The whole run as one JSON object."""
    return {
        "machine": {
            "cores": machine.cores,
            "load_before": round(machine.load_before, 2),
            "load_after": round(machine.load_after, 2),
            "busy": machine.busy,
        },
        "figures": {figure.key: figure.as_json() for figure in figures},
        "passed": all(figure.passed is not False for figure in figures),
    }


def above(key: str, says: str, measured: Sequence[float], bare: Sequence[float], unit: str, target: float) -> Figure:
    """How far the median of `measured` lies above that of `bare`."""
    value = statistics.median(measured) - statistics.median(bare)
    return Figure(key, says, value, unit, target, tuple(measured), tuple(bare))
