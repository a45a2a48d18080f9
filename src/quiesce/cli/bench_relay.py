"""`quiesce bench relay`: what the relay does on this machine, beside bare loops, peers and what is asked of it."""

import argparse
import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quiesce.cli.flags import add_flag, add_switch
from quiesce.cli.unwinding import unwound

if TYPE_CHECKING:
    from quiesce.bench.relay_plan import Plan


def add_to(topics: Any) -> None:
    relay = topics.add_parser(
        "relay",
        help="how fast the outbox's relay is",
        description="Starts PostgreSQL and a broker, writes a backlog, and has it moved in turns by our relay (a whole "
        "service with metrics, as a process of its own) and by a bare loop: page read, produce with a delivery "
        "callback, one update of a cursor (log store) or of the rows (row store). Then: two relays beside one, the way "
        "from commit to consumer, and what is noticed when a relay is killed, stopped, started. Everything shares this "
        "machine's cores, so the ratios tell more than the figures.",
        epilog="Exit status: 0 if everything asked is kept, 1 otherwise. Ends within four minutes by default. --full "
        "takes half an hour, --sweep six minutes more; each peer one or two, and what has to be fetched first.",
    )
    add_flag(relay, "--store", default="both", choices=("both", "log", "row"), help="which store")
    add_flag(relay, "--broker", default="kafka", help="kafka, tansu, or an address for bootstrap.servers")
    add_flag(
        relay,
        "--postgres",
        default=None,
        metavar="DSN",
        help="a server that is there, whose user may create databases, in place of one that is started",
    )
    add_flag(relay, "--events", default=1_000_000, convert=at_least_one, help="size of the backlog")
    add_flag(relay, "--keys", default=1_000, convert=at_least_one, help="keys that the events have")
    add_flag(relay, "--payload", default=200, convert=payload, help="bytes of each payload")
    add_flag(relay, "--page", default=5_000, convert=at_least_one, help="most events of one claim")
    add_flag(
        relay,
        "--rounds",
        default=None,
        convert=at_least_one,
        help="how often each is run, the median counts; by default three times, if there is time",
    )
    add_flag(
        relay,
        "--only",
        default=None,
        convert=parts,
        metavar="PART,PART",
        help="these parts only: throughput, pair, pages, latency, rates, handover, wakeup, horizon, memory",
    )
    add_flag(
        relay,
        "--peers",
        default=None,
        convert=peers,
        help="other relays on the same servers: all, none (as without it) or NAME,NAME of faststream-outbox, txoutbox, "
        "debezium, seed",
    )
    add_flag(
        relay,
        "--write",
        default=None,
        convert=Path,
        metavar="FILE",
        help="keep the figures in this file as JSON; parts that are not measured keep what a former run wrote",
    )
    add_switch(relay, "--full", help="the long parts too, each part at length, and all peers")
    add_switch(relay, "--sweep", help="throughput against the size of a page, latency against the rate, too")
    add_switch(relay, "--quick", help="measure little: shows that it works, not how fast it is")
    add_switch(relay, "--json", help="print the figures as one JSON object in the last line")
    relay.set_defaults(run=run)


def at_least_one(text: str) -> int:
    """A whole number, 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"got {text!r}, takes a whole number, 1 or more")
    return int(text)


def peers(text: str) -> tuple[str, ...]:
    """The peers that `all`, `none` or names with commas stand for."""
    from quiesce.bench.relay_rates import chosen

    try:
        return chosen(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def parts(text: str) -> tuple[str, ...]:
    """The parts that names with commas stand for."""
    from quiesce.bench.relay_plan import chosen_parts

    try:
        return chosen_parts(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def payload(text: str) -> int:
    """A whole number in which an event's number has room."""
    from quiesce.bench.relay_plan import LEAST_PAYLOAD
    from quiesce.bench.servers import MOST_PAYLOAD

    if not text.isdecimal() or not LEAST_PAYLOAD <= int(text) <= MOST_PAYLOAD:
        raise argparse.ArgumentTypeError(f"got {text!r}, takes a whole number from {LEAST_PAYLOAD} to {MOST_PAYLOAD}")
    return int(text)


def plan_of(arguments: argparse.Namespace) -> "Plan":
    """What the flags ask for."""
    from quiesce.bench.relay_plan import ALWAYS, FULL, LONG, PARTS, QUICK, QUICK_EVENTS, SHORT, SWEEPS, Plan
    from quiesce.bench.relay_rates import PEERS

    effort = QUICK if arguments.quick else FULL if arguments.full else SHORT
    if arguments.rounds is not None:
        effort = replace(effort, rounds=arguments.rounds, by={})
    wanted = {*ALWAYS, *(LONG if arguments.full else ()), *(SWEEPS if arguments.sweep else ())}
    everyone = tuple(PEERS) if arguments.full and arguments.only is None else ()
    return Plan(
        stores=("log", "row") if arguments.store == "both" else (arguments.store,),
        parts=arguments.only or tuple(name for name in PARTS if name in wanted),
        broker=arguments.broker,
        database=arguments.postgres or "",
        events=min(arguments.events, QUICK_EVENTS) if arguments.quick else arguments.events,
        keys=arguments.keys,
        payload=arguments.payload,
        page=arguments.page,
        effort=effort,
        peers=everyone if arguments.peers is None else arguments.peers,
        quick=arguments.quick,
    )


@unwound()
def run(arguments: argparse.Namespace) -> int:
    # They say which package is missing, if one is.
    import asyncpg  # noqa: F401
    import confluent_kafka  # noqa: F401
    import prometheus_client  # noqa: F401

    from quiesce.bench.figures import load
    from quiesce.bench.relay_run import measure
    from quiesce.bench.results import Result, assembled, kept_everywhere, read_figures, write_figures
    from quiesce.bench.servers import described

    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:5.0f} s  {text}", file=sys.stderr, flush=True)

    plan = plan_of(arguments)
    servers = described(plan.broker, plan.server, plan.database)
    machine = {"servers": servers, "cores": os.cpu_count() or 1, "load_before": round(load(), 2)}
    effort = "quick" if arguments.quick else "full" if arguments.full else "short"
    how = {"events": plan.events, "keys": plan.keys, "payload": plan.payload}
    how |= {"page": plan.page, "pages": plan.pages}
    beside = {"effort": effort, "plan": how, "servers": servers}
    written: dict[str, Any] = {} if arguments.write is None else read_figures(arguments.write)
    written.pop("failed", None)
    results: list[Result] = []
    for result in measure(plan, say):
        results.append(result)
        for line in result.lines():
            print(line, flush=True)
        if arguments.write is not None:
            # A part that is measured apart says so itself.
            if arguments.only is None or "plan" not in written:
                written |= {"plan": how, "machine": machine}
            write_figures(arguments.write, assembled([result], written, beside=beside))
    whole = {"stores": {}, "latency_ms": None, "peers": {}, "plan": how, "machine": machine}
    whole = assembled(results, whole, beside=beside)
    passed = kept_everywhere(whole)
    print(f"{servers}; {machine['cores']} cores shared by all, load {machine['load_before']:.2f} before")
    if any(result.cores is not None and result.cores.loaded for result in results):
        print("THE MACHINE WAS LOADED BY OTHERS meanwhile: run it again when it is quiet before you believe a figure")
    if arguments.json:
        print(json.dumps({**whole, "passed": passed}))
    return 0 if passed else 1
