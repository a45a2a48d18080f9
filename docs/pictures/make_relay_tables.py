"""Writes the relay's tables into `docs/reference/performance.md`: `python docs/pictures/make_relay_tables.py`.

They are made of `docs/reference/relay-figures.json` alone, which
`quiesce bench relay --full --sweep --write docs/reference/relay-figures.json` writes: so the page cannot disagree with
what ran. A part that was measured again by `--only` keeps the others as they were.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

REFERENCE = Path(__file__).parents[1] / "reference"
FIGURES = REFERENCE / "relay-figures.json"
PAGE = REFERENCE / "performance.md"

BEGIN = "<!-- Between these lines: python docs/pictures/make_relay_tables.py -->"
PEERS = "<!-- Between these lines, once peers were measured: python docs/pictures/make_relay_tables.py -->"
END = "<!-- end -->"

# Parts, each with its place in the object and how it is called here.
PARTS = (
    ("log store", ("stores", "log")),
    ("row store", ("stores", "row")),
    ("two relays", ("pair",)),
    ("commit to consumer", ("latency_ms",)),
    ("a relay goes", ("handover",)),
    ("waking the relay", ("wakeup",)),
    ("xmin held", ("horizon",)),
    ("memory", ("memory",)),
)


def tables(figures: dict[str, Any]) -> str:
    """What stands between the first two lines."""
    return "\n".join([*heading(figures), "", *promises(figures), "", *notes(figures), *apart(figures)]).strip()


def heading(figures: dict[str, Any]) -> Iterator[str]:
    plan, machine = figures["plan"], figures["machine"]
    yield f"{machine['servers']}, relay and load on the same {machine['cores']} cores. Events of"
    yield f"{plan['payload']} bytes, {plan['keys']:,} keys, six partitions, at most {plan['pages']} pages of"
    yield f"{plan['page']:,} in flight."
    yield "The last column: cores that others took meanwhile; bold where that was so much that the figure is worse than"
    yield "the machine's."


def apart(figures: dict[str, Any]) -> Iterator[str]:
    """Parts that another run measured, in another way or with other servers, than the heading says."""
    plan, servers = figures["plan"], figures["machine"]["servers"]
    for name, place in PARTS:
        part = at(figures, place) or {}
        own, on = part.get("plan", plan), part.get("servers", servers)
        if (own, on) != (plan, servers):
            how = f"{own['payload']} bytes, {own['keys']:,} keys, {own['pages']} pages of {own['page']:,} in flight"
            yield f"- {name}: measured apart, {on}, {how}."


def promises(figures: dict[str, Any]) -> Iterator[str]:
    yield "| part | what | measured | asked | | others |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for name, place in PARTS:
        part = at(figures, place)
        if part is None:
            continue
        for key, figure in part["figures"].items():
            yield row(name, SAID.get((place[0], key), key), figure, part)


def notes(figures: dict[str, Any]) -> Iterator[str]:
    """What a verdict alone does not tell."""
    for store, part in figures.get("stores", {}).items():
        yield (
            f"- {store} store, {part.get('events', 0):,} events in pages of {part['page']:,}: the bare loop moved "
            f"{part['bare_events_per_second']:,} events/s at "
            f"{part['bare_cpu_us_per_event']:.1f} microseconds of CPU an event. "
            f"Cores of the relay {part['cores']['relay']:.2f}, PostgreSQL {part['cores'].get('postgres', 0.0):.2f}, "
            f"the broker {part['cores'].get('broker', 0.0):.2f}."
        )
    if pair := figures.get("pair"):
        yield (
            f"- two relays {pair['two_events_per_second']:,} events/s, one {pair['one_events_per_second']:,}; "
            f"{pair['checked_events']:,} events were read from the topic."
        )
    latency = figures.get("latency_ms") or {}
    if loop := latency.get("loop"):
        yield (
            f"- commit to consumer: a loop that asks for all lanes every 2 ms took {loop['p50']:.2f} ms, 99 of 100 "
            f"{loop['p99']:.1f} ms, at {loop['busy_share']:.3f} of a core."
        )
    if wakeup := figures.get("wakeup"):
        yield (
            f"- commits at {wakeup['rate']:,.0f} transactions a second: 99 of 100 within "
            f"{wakeup['on_p99_ms']:.2f} ms with wake-ups, {wakeup['off_p99_ms']:.2f} ms without; half within "
            f"{wakeup['on_p50_ms']:.2f} and {wakeup['off_p50_ms']:.2f} ms."
        )
    if horizon := figures.get("horizon"):
        first, last = horizon["windows"][0], horizon["windows"][-1]
        yield (
            f"- xmin held for {horizon['seconds']:,.0f} s at {horizon['rate']:,.0f} events a second, "
            f"{horizon['horizon_age']:,} transactions, {horizon['dead_tuples']:,} dead rows: "
            f"{first['per_second']:,}/s with 99 of 100 within {first['p99']:.1f} ms in the first half minute, "
            f"{last['per_second']:,}/s and {last['p99']:.1f} ms in the last. At the same time a relay with "
            f"{horizon['beside_rate']:,.0f} events a second on a database where nothing was held went from "
            f"{horizon['beside'][0]['p99']:.1f} to {horizon['beside'][-1]['p99']:.1f} ms."
        )
    for name, part in figures.get("failed", {}).items():
        yield f"- **{name} failed**: {part['failed']}"
    if memory := figures.get("memory"):
        yield f"- memory: {memory['backlog']:,} events, moved at {memory['events_per_second']:,}/s."


def peers(figures: dict[str, Any]) -> Iterator[str]:
    found = figures.get("peers") or {}
    yield "| other relay | events/s | second half | ours is | asked | | others |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for name, peer in found.items():
        if "missing" in peer:
            yield f"| {name} | not measured: {peer['missing']} | | | | | |"
            continue
        ratio, warm = peer["figures"]["ratio"], peer["figures"]["warm_ratio"]
        asked = " and ".join(f"{one['target']:g}" for one in (ratio, warm) if one["target"])
        kept = verdict(None if not asked else peer["passed"])
        speed = f"{number(peer['events_per_second'])} | {number(peer['warm_half_per_second'])}"
        yield (
            f"| {name} {peer['version']} | {speed} | "
            f"{number(ratio['value'])} times as fast, {number(warm['value'])} | {asked} | {kept} | {others(peer)} |"
        )


def row(name: str, what: str, figure: dict[str, Any], part: dict[str, Any]) -> str:
    measured = f"{number(figure['value'])} {figure['unit']}".strip()
    if part.get("effort") == "quick":
        # It shows that the part works, not how fast it is.
        name, measured = f"{name} (a quick run)", f"*{measured}*"
    return f"| {name} | {what} | {measured} | {figure['asked']} | {verdict(figure['passed'])} | {others(part)} |"


SAID = {
    ("stores", "events_per_second"): "events moved in a second",
    ("stores", "ratio"): "of the bare loop",
    ("stores", "cpu_us"): "CPU an event",
    ("pair", "ratio"): "of one relay",
    ("pair", "disordered"): "events out of the order of their key",
    ("pair", "doubled"): "events twice, with a stop in each turn",
    ("latency_ms", "p50"): "half of the events, 200 a second",
    ("latency_ms", "p99"): "99 of 100",
    ("latency_ms", "busy_share"): "of a core, the relay",
    ("latency_ms", "idle_share"): "of a core, when nothing comes",
    ("latency_ms", "p50_ratio"): "half of the events, of a plain loop's",
    ("latency_ms", "p99_ratio"): "99 of 100, of a plain loop's",
    ("latency_ms", "busy_ratio"): "of a core, of a plain loop's",
    ("handover", "kill_seconds"): "SIGKILL at 500 a second: longest way of an event",
    ("handover", "kill_doubled"): "SIGKILL: events twice, of those in flight",
    ("handover", "term_seconds"): "SIGTERM: longest way of an event",
    ("handover", "term_doubled"): "SIGTERM: events twice",
    ("handover", "cold_seconds"): "start of the process to the first event",
    ("wakeup", "rate"): "transactions a second",
    ("wakeup", "ratio"): "99th percentile of commits, of that without",
    ("horizon", "began_at"): "events a second at the beginning",
    ("horizon", "throughput_ratio"): "events a second, of the beginning's",
    ("horizon", "p99_ratio"): "99th percentile, of the beginning's",
    ("horizon", "beside_ratio"): "the same beside a relay where nothing is held",
    ("horizon", "free_p99_ratio"): "that relay's own",
    ("memory", "peak_mb"): "resident, at most",
    ("memory", "growth"): "last quarter, of the second one",
}


def verdict(passed: bool | None) -> str:
    return {True: "kept", False: "**not kept**", None: ""}[passed]


def others(part: dict[str, Any]) -> str:
    load = part.get("load") or {}
    if load.get("others") is None:
        return ""
    taken = load["others"] + (load.get("stolen") or 0.0)
    return f"**{taken:.2f}**" if load["loaded_by_others"] else f"{taken:.2f}"


def number(value: float) -> str:
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def at(figures: dict[str, Any], place: tuple[str, ...]) -> Any:
    found: Any = figures
    for key in place:
        found = (found or {}).get(key)
    return found


def page(text: str, figures: dict[str, Any]) -> str:
    """The page with the tables in their places."""
    text = between(text, BEGIN, tables(figures))
    # Peers take long and are not in every run.
    return between(text, PEERS, "\n".join(peers(figures))) if figures.get("peers") else text


def between(text: str, begin: str, told: str) -> str:
    before, _, rest = text.partition(begin + "\n")
    _, _, after = rest.partition(END)
    return f"{before}{begin}\n\n{told}\n\n{END}{after}"


if __name__ == "__main__":
    figures = json.loads(FIGURES.read_text(encoding="utf-8"))
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), figures), encoding="utf-8")
