"""Draws `relay-curves.svg` from what the bench wrote down: `python docs/pictures/make_relay_curves.py`.

The points are those of `docs/reference/relay-figures.json`, so the picture cannot say anything else than what was
measured. `quiesce bench relay --sweep --write docs/reference/relay-figures.json` writes them.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import log10
from pathlib import Path
from typing import Any

PICTURE = Path(__file__).with_name("relay-curves.svg")
FIGURES = Path(__file__).parents[1] / "reference" / "relay-figures.json"

WIDTH, HEIGHT = 350.0, 230.0
LEFT, TOP, BETWEEN = 64.0, 58.0, 92.0
STEPS = (1, 2, 5)

STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #24292f }
  .small { font-size: 11.5px; fill: #57606a }
  .axis { stroke: #8c959f; stroke-width: 1 }
  .grid { stroke: #8c959f; stroke-width: 1; opacity: .25 }
  .line { fill: none; stroke-width: 2.2 }
  .first { stroke: #0969da }
  .second { stroke: #8250df }
  .bare { stroke-dasharray: 4 3; opacity: .75 }
  .dot.first { fill: #0969da }
  .dot.second { fill: #8250df }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 }
    .small { fill: #9198a1 }
    .first { stroke: #4493f8 }
    .second { stroke: #ab7df8 }
    .dot.first { fill: #4493f8 }
    .dot.second { fill: #ab7df8 }
  }
"""

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Curve:
    """`kind` is its class in the style, `said` its name in the legend."""

    said: str
    kind: str
    points: Points


@dataclass(frozen=True)
class Panel:
    """One diagram. The x axis is logarithmic; so is the y axis unless it begins at `0`."""

    title: str
    across: str
    curves: Sequence[Curve]
    left: float
    from_zero: bool

    @property
    def xs(self) -> list[float]:
        return sorted({x for curve in self.curves for x, _ in curve.points})

    @property
    def ys(self) -> list[float]:
        """Where the y axis has its marks: the values lie between the first and the last."""
        values = [y for curve in self.curves for _, y in curve.points]
        if self.from_zero:
            step = next(one for one in marks(1, 1e9) if max(values) / one <= 6)
            return [step * number for number in range(int(max(values) / step) + 2)]
        low = max(one for one in marks(1e-3, 1e6) if one <= min(values))
        return [*(one for one in marks(low, 1e6) if one < max(values)), min(marks(max(values), 1e7))]

    def x(self, value: float) -> float:
        low, high = log10(self.xs[0]), log10(self.xs[-1])
        return self.left + WIDTH * (log10(value) - low) / (high - low)

    def y(self, value: float) -> float:
        low, high = self.ys[0], self.ys[-1]
        share = value / high if self.from_zero else (log10(value) - log10(low)) / (log10(high) - log10(low))
        return TOP + HEIGHT * (1 - share)

    def drawn(self) -> list[str]:
        bottom, right = TOP + HEIGHT, self.left + WIDTH
        lines = [text(self.left - 54, TOP - 34, self.title)]
        for mark in self.ys:
            lines += [
                level("grid", self.left, right, self.y(mark)),
                text(self.left - 8, self.y(mark) + 4, short(mark), "small", "end"),
            ]
        for value in self.xs:
            lines.append(text(self.x(value), bottom + 17, short(value), "small", "middle"))
        lines.append(level("axis", self.left, right, bottom))
        lines.append(text(right, bottom + 36, self.across, "small", "end"))
        at = self.left
        for curve in self.curves:
            path = " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in curve.points)
            lines.append(f'<polyline class="line {curve.kind}" points="{path}"/>')
            if "bare" not in curve.kind:
                for x, y in curve.points:
                    lines.append(f'<circle class="dot {curve.kind}" cx="{self.x(x):.1f}" cy="{self.y(y):.1f}" r="3"/>')
            lines.append(level(f"line {curve.kind}", at, at + 20, bottom + 58))
            lines.append(text(at + 25, bottom + 62, curve.said, "small"))
            at += 38 + 6.6 * len(curve.said)
        return lines


def panels(figures: dict[str, Any]) -> list[Panel]:
    """Throughput against the size of a page, latency against the rate."""
    sweep = figures["sweep"]
    curves = []
    for store, kind in (("log", "first"), ("row", "second")):
        if store in sweep["pages"]:
            points = sweep["pages"][store]["points"]
            curves.append(Curve(f"{store} store", kind, of(points, "page", "events_per_second")))
            curves.append(Curve("bare", f"{kind} bare", of(points, "page", "bare_events_per_second")))
    (rates,) = sweep["rates"].values()
    ways = [
        Curve("half of the events", "first", of(rates["points"], "rate", "p50")),
        Curve("99 of 100", "second", of(rates["points"], "rate", "p99")),
    ]
    second = LEFT + WIDTH + BETWEEN
    across = f"events of a page, {figures['plan']['pages']} pages in flight"
    return [
        Panel("Events moved in a second", across, curves, LEFT, True),
        Panel("Milliseconds from commit to consumer", "transactions a second", ways, second, False),
    ]


def picture(figures: dict[str, Any]) -> str:
    """The whole SVG, as text."""
    both = panels(figures)
    width, height = LEFT + 2 * WIDTH + BETWEEN + 24, TOP + HEIGHT + 112
    cores = figures["machine"]["cores"]
    said = f"{figures['machine']['servers']}; relay, servers and load share {cores} cores. Dashed: the bare loops."
    but = ""
    if any(part.get("effort") == "quick" for part in parts(figures)):
        but = "A quick run, which says nothing of speed."
    elif disturbed(figures):
        but = "Others loaded the machine meanwhile, so it is faster than that."
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img" '
        'aria-labelledby="title what">',
        '<title id="title">Throughput of the relay against the size of a page, latency against the rate</title>',
        f'<desc id="what">{escape(in_words(both))}</desc>',
        f"<style>{STYLE}</style>",
        *(line for panel in both for line in panel.drawn()),
        text(LEFT - 54, height - 22, said, "small"),
        text(LEFT - 54, height - 5, but, "small"),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def disturbed(figures: dict[str, Any]) -> bool:
    """Whether a curve was measured on a machine that others loaded."""
    return any(part["load"]["loaded_by_others"] for part in parts(figures))


def parts(figures: dict[str, Any]) -> list[dict[str, Any]]:
    return [*figures["sweep"]["pages"].values(), *figures["sweep"]["rates"].values()]


def in_words(both: Sequence[Panel]) -> str:
    """For who cannot see it."""
    told = []
    for panel in both:
        for curve in panel.curves:
            values = ", ".join(f"{short(y)} at {short(x)}" for x, y in curve.points)
            told.append(f"{panel.title}, {curve.said}: {values}")
    return "; ".join(told) + "."


def of(points: Sequence[dict[str, float]], x: str, y: str) -> Points:
    return [(point[x], point[y]) for point in points]


def marks(low: float, high: float) -> list[float]:
    """1, 2, 5, 10, 20 ... from `low` to `high`."""
    found = [step * 10.0**power for power in range(-4, 11) for step in STEPS]
    return [one for one in found if low * 0.999999 <= one <= high]


def short(value: float) -> str:
    if value >= 1000:
        return f"{value / 1000:.3g}k"
    return f"{value:.3g}"


def level(kind: str, begins: float, ends: float, at: float) -> str:
    return f'<line class="{kind}" x1="{begins:.1f}" x2="{ends:.1f}" y1="{at:.1f}" y2="{at:.1f}"/>'


def text(at: float, top: float, said: str, kind: str = "", anchor: str = "start") -> str:
    of_kind = f' class="{kind}"' if kind else ""
    return f'<text{of_kind} x="{at:.1f}" y="{top:.1f}" text-anchor="{anchor}">{escape(said)}</text>'


if __name__ == "__main__":
    PICTURE.write_text(picture(json.loads(FIGURES.read_text(encoding="utf-8"))), encoding="utf-8")
