"""Checks of what relays tell of themselves: is what they have in flight finished within the bound of a stop? Pure."""

import re
from collections.abc import Mapping

from quiesce.outbox.checks import Check

Figures = Mapping[str, float]
"""The metrics of one relay by their names, those with the label `what` as `name/what`."""

_SAMPLE = re.compile(r'(outbox_\w+)\{relay="((?:[^"\\]|\\.)*)"(?:,what="(\w+)")?\} (\S+)')
_ESCAPED = re.compile(r"\\(.)")


def figures(text: str) -> dict[str, dict[str, float]]:
    """The figures of each relay, by its name, from a page of Prometheus metrics."""
    found: dict[str, dict[str, float]] = {}
    for line in text.splitlines():
        sample = _SAMPLE.match(line)
        if sample is not None:
            name = _ESCAPED.sub(lambda one: "\n" if one[1] == "n" else one[1], sample[2])
            found.setdefault(name, {})[sample[1] + (f"/{sample[3]}" if sample[3] else "")] = float(sample[4])
    return {name: told for name, told in found.items() if "outbox_in_flight_limit_events" in told}


def relay_check(name: str, told: Figures) -> Check:
    """Holds the bound of a stop against the measured times of publishing."""
    check = f"relay {name}"
    away = sorted(key.partition("/")[2] for key, value in told.items() if key.startswith("outbox_outage/") and value)
    if away:
        return Check(
            check, "bad", f"waits for the {' and the '.join(away)}", "See that server; the relay goes on by itself"
        )
    limit, most = (told.get(f"outbox_in_flight_{which}_events", 0.0) for which in ("limit", "most"))
    pace, within = (
        told.get(f"outbox_{which}", 0.0) for which in ("broker_pace_events_per_second", "stop_bound_seconds")
    )
    now = f"{told.get('outbox_in_flight_events', 0):,.0f} events in flight, at most {limit:,.0f} of {most:,.0f}"
    if not pace or not most:
        return Check(check, "ok", f"{now}; no answer of the broker is measured yet")
    now += f"; the broker answers {pace:,.0f} a second at least, and a stop has {within:g} s"
    if limit > pace * within:
        return Check(
            check,
            "bad",
            f"{now}: too short even for so few, so a stop leaves events without an answer",
            "See why the broker is slow; else raise the budget's `workers`, or the relay's `bound`",
        )
    if limit < most / 2:
        return Check(
            check,
            "warn",
            f"{now}: fewer are sent at once, so that a stop can finish them",
            "See why the broker is slow; else raise the budget's `workers`, or the relay's `bound`",
        )
    return Check(check, "ok", now)
