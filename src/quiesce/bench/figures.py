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
        at_least: it should be `target` or more.
        or_equal: the target itself is kept too, as where things are counted.
    """

    key: str
    says: str
    value: float
    unit: str
    target: float | None = None
    samples: tuple[float, ...] = ()
    bare: tuple[float, ...] = ()
    at_least: bool = False
    or_equal: bool = False

    @property
    def passed(self) -> bool | None:
        """Whether the target is kept; None without one."""
        if self.target is None:
            return None
        if self.at_least:
            return self.value >= self.target
        return self.value < self.target or (self.or_equal and self.value == self.target)

    @property
    def asked(self) -> str:
        """What is asked of it, in words; empty where nothing is."""
        if self.target is None:
            return ""
        how = "at least" if self.at_least else "at most" if self.or_equal else "under"
        return f"{how} {number(self.target)} {self.unit}".rstrip()

    def line(self) -> str:
        verdict = {True: "kept", False: "NOT KEPT", None: ""}[self.passed]
        value = f"{number(self.value)} {self.unit}".rstrip()
        return f"{self.says:<64} {value:>16}  {self.asked:<20} {verdict}".rstrip()

    def as_json(self) -> dict[str, Any]:
        return {
            "value": round(self.value, 6),
            "unit": self.unit,
            "target": self.target,
            "asked": self.asked,
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


def number(value: float) -> str:
    """Four digits that count, with commas from a thousand on."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


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
