"""`quiesce bench relay`: what the relay moves on this machine, beside bare loops."""

import argparse
import json
import os
import sys
from typing import Any

from quiesce.cli.flags import add_flag, add_switch


def add_to(topics: Any) -> None:
    relay = topics.add_parser(
        "relay",
        help="how fast the outbox's relay is",
        description="Starts PostgreSQL and a broker, writes a backlog, and has it moved in turns by our relay (a whole "
        "service with metrics, as a process of its own) and by a bare loop: page read, produce with a delivery "
        "callback, one update of a cursor (log store) or of the rows (row store). Then it measures the way from commit "
        "to consumer. Everything shares this machine's cores, so the ratios tell more than the figures.",
        epilog="Exit status: 0 if every target is kept, 1 otherwise. Ends within four minutes by default; each peer "
        "takes one or two more, and what has to be fetched first.",
    )
    add_flag(relay, "--store", default="both", choices=("both", "log", "row"), help="which store")
    add_flag(relay, "--broker", default="kafka", help="kafka, tansu, or an address for bootstrap.servers")
    add_flag(relay, "--events", default=1_000_000, convert=at_least_one, help="size of the backlog")
    add_flag(relay, "--keys", default=1_000, convert=at_least_one, help="keys that the events have")
    add_flag(relay, "--payload", default=200, convert=at_least_one, help="bytes of each payload")
    add_flag(relay, "--page", default=1_000, convert=at_least_one, help="most events of one claim")
    add_flag(relay, "--rounds", default=3, convert=at_least_one, help="how often each is run; the median counts")
    add_flag(
        relay,
        "--peers",
        default=None,
        convert=peers,
        help="other relays on the same servers: all, none (as without it) or NAME,NAME of faststream-outbox, txoutbox, "
        "debezium, seed",
    )
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


def run(arguments: argparse.Namespace) -> int:
    # They say which package is missing, if one is.
    import asyncpg  # noqa: F401
    import confluent_kafka  # noqa: F401
    import prometheus_client  # noqa: F401

    from quiesce.bench.figures import Machine, load
    from quiesce.bench.relay_run import Outcome, Plan, latency_lines, measure, servers_of

    def say(text: str) -> None:
        print(f"... {text}", file=sys.stderr, flush=True)

    plan = Plan(
        stores=("log", "row") if arguments.store == "both" else (arguments.store,),
        broker=arguments.broker,
        events=min(arguments.events, 20_000) if arguments.quick else arguments.events,
        keys=arguments.keys,
        payload=arguments.payload,
        page=arguments.page,
        rounds=1 if arguments.quick else arguments.rounds,
        latency_seconds=2.0 if arguments.quick else 15.0,
        peers=arguments.peers or (),
        quick=arguments.quick,
    )
    before = load()
    servers = servers_of(plan)
    outcome = Outcome({})
    told: set[str] = set()
    for outcome in measure(plan, say):
        for store in outcome.throughput.keys() - told:
            print(outcome.throughput[store].line(), flush=True)
            told.add(store)
        for peer in outcome.peers.keys() - told:
            print(outcome.peers[peer].line(), flush=True)
            told.add(peer)
    if outcome.latency is not None:
        for what, measured, kept in latency_lines(outcome.latency):
            print(f"{what:<44} {measured:>20}  {'pass' if kept else 'MISSED'}")
    machine = Machine(os.cpu_count() or 1, before, load())
    print(f"{servers}; {machine.cores} cores shared by all, load {before:.2f} before")
    if arguments.json:
        print(json.dumps(outcome.as_json(machine, plan, servers)))
    return 0 if outcome.passed else 1
