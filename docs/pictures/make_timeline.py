"""Draws `shutdown-timeline.svg` from the arithmetic of the budget: `python docs/pictures/make_timeline.py`.

The instants are those that a running service computes, so the picture cannot say anything else than what it does.
"""

from html import escape
from pathlib import Path

from quiesce.lifecycle.budget import Budget, WorkerBound
from quiesce.lifecycle.timeline import OTHERS, Stretch, Timeline

PICTURE = Path(__file__).with_name("shutdown-timeline.svg")

BUDGET = Budget()
WORKERS = (WorkerBound("charge", 5.0, after_http=True),)

SAID = {
    "prestop": "preStop sleep, spent before SIGTERM",
    "http": "requests in flight",
    OTHERS: "the iteration in hand",
    "worker charge": 'a worker with after="http"',
    "producers": "flushed and closed",
    "pools": "closed, then cut",
    "report": "log, metrics",
    "margin": "for a late machine",
}

SECOND = 13.0
LEFT, TOP, ROW, BAR = 118.0, 64.0, 34.0, 20.0

STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #24292f }
  .small { font-size: 11.5px; fill: #57606a }
  .axis { stroke: #8c959f; stroke-width: 1 }
  .grid { stroke: #8c959f; stroke-width: 1; opacity: .25 }
  .works { fill: #0969da }
  .reserved { fill: #8250df }
  .outside { fill: #8c959f }
  .spare { fill: none; stroke: #0969da; stroke-width: 1.5; stroke-dasharray: 4 3 }
  .end { stroke: #cf222e; stroke-width: 2 }
  .ended { fill: #cf222e }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 }
    .small { fill: #9198a1 }
    .works { fill: #4493f8 }
    .reserved { fill: #ab7df8 }
    .spare { stroke: #4493f8 }
    .end { stroke: #f85149 }
    .ended { fill: #f85149 }
  }
"""


def picture() -> str:
    """The whole SVG, as text."""
    timeline = Timeline.of(BUDGET, WORKERS)
    rows = timeline.stretches
    bottom = TOP + ROW * len(rows)
    width, height = x(timeline.after_sigterm) + 70, bottom + 78
    kill = timeline.after_sigterm
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img" '
        'aria-labelledby="title what">',
        f'<title id="title">The shutdown of a service within {BUDGET.grace_period:g} seconds</title>',
        f'<desc id="what">{escape(in_words(timeline))}</desc>',
        f"<style>{STYLE}</style>",
    ]
    for second in range(-round(BUDGET.prestop), round(kill) + 1, 10):
        lines += [vertical("grid", second, TOP - 6, bottom), text(x(second), bottom + 16, f"{second:g} s", "small")]
    for number, stretch in enumerate(rows):
        lines += row(stretch, TOP + ROW * number)
    lines += [
        vertical("axis", 0, TOP - 24, bottom),
        text(x(0), TOP - 44, "T0: SIGTERM, or any other request to stop"),
        text(x(0), TOP - 28, "readiness answers 503 and all intake closes, in the same instant", "small"),
        vertical("end", BUDGET.available, TOP - 6, bottom),
        vertical("end", kill, TOP - 6, bottom),
        text(x(kill) + 4, TOP + 8, "SIGKILL", "ended"),
        text(x(BUDGET.available) - 5, bottom + 34, f"hard deadline, {BUDGET.available:g} s", "ended", "end"),
        *legend(bottom + 62),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def row(stretch: Stretch, top: float) -> list[str]:
    kind = "outside" if stretch.mark == "-" else "reserved" if stretch.reserved else "works"
    bar = top + (ROW - BAR) / 2
    end = stretch.deadline
    lines = [text(LEFT - 10, bar + 15, stretch.name, anchor="end"), box(kind, stretch.begins, end, bar)]
    if stretch.spare > 0 and not stretch.reserved and end > 0:
        lines.append(box("spare", end, end + stretch.spare, bar))
        end += stretch.spare
    told = f"{stretch.bound:g} s, {SAID[stretch.name]}"
    # Beside the bar, on the side where there is room.
    if stretch.reserved:
        lines.append(text(x(stretch.begins) - 8, bar + 15, told, "small", "end"))
    else:
        lines.append(text(x(end) + 8, bar + 15, told, "small"))
    return lines


def legend(top: float) -> list[str]:
    lines = []
    at = LEFT
    for kind, said, room in (
        ("works", "its bound: work in hand is finished", 262.0),
        ("spare", "time to spare before closing begins", 258.0),
        ("reserved", "kept for closing, whoever overruns", 0.0),
    ):
        lines.append(f'<rect class="{kind}" x="{at:g}" y="{top - 11:g}" width="22" height="12" rx="2"/>')
        lines.append(text(at + 30, top, said, "small"))
        at += room
    return lines


def in_words(timeline: Timeline) -> str:
    """For who cannot see it."""
    told = (f"{one.name} from {one.begins:g} to {one.deadline:g}" for one in timeline.stretches)
    return (
        f"Seconds from T0, the request to stop: {', '.join(told)}; hard deadline at {BUDGET.available:g}, "
        f"SIGKILL at {timeline.after_sigterm:g}."
    )


def x(second: float) -> float:
    return LEFT + (second + BUDGET.prestop) * SECOND


def box(kind: str, begins: float, ends: float, top: float) -> str:
    width = (ends - begins) * SECOND
    return f'<rect class="{kind}" x="{x(begins):g}" y="{top:g}" width="{width:g}" height="{BAR:g}" rx="3"/>'


def vertical(kind: str, second: float, top: float, bottom: float) -> str:
    return f'<line class="{kind}" x1="{x(second):g}" x2="{x(second):g}" y1="{top:g}" y2="{bottom:g}"/>'


def text(at: float, top: float, said: str, kind: str = "", anchor: str = "start") -> str:
    of_kind = f' class="{kind}"' if kind else ""
    return f'<text{of_kind} x="{at:g}" y="{top:g}" text-anchor="{anchor}">{escape(said)}</text>'


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
