"""`quiesce bench consumer`: what our consumer handles on this machine, beside a bare loop, and with an inbox."""

import argparse
import json
import os
import sys
import time
from typing import Any

from quiesce.cli.bench_relay import at_least_one
from quiesce.cli.flags import add_flag, add_switch
from quiesce.cli.unwinding import unwound


def add_to(topics: Any) -> None:
    consumer = topics.add_parser(
        "consumer",
        help="how fast the consumer and its inbox are",
        description="Starts PostgreSQL and a broker, fills a topic, and has it read in turns by a bare loop over "
        "confluent-kafka's consume(), by the same with our fetch.queue.backoff.ms, by our consumer (a whole service "
        "with metrics, as a process of its own) with a "
        "batch handler that looks at each record, by one whose handler reads the JSON and writes a row a record in one "
        "transaction a batch, and by that one with an inbox. All share this machine's cores, so the ratios tell "
        "more than the figures.",
        epilog="Exit status: 0 if everything asked is kept, 1 otherwise. Takes about two minutes.",
    )
    add_flag(consumer, "--broker", default="kafka", help="kafka, tansu, or an address for bootstrap.servers")
    add_flag(
        consumer,
        "--postgres",
        default="",
        metavar="DSN",
        help="a server that is there, whose user may create databases; without it one is started",
    )
    add_flag(consumer, "--records", default=500_000, convert=at_least_one, help="records for the first three")
    add_flag(consumer, "--rows", default=200_000, convert=at_least_one, help="records for those that write rows")
    add_flag(consumer, "--keys", default=1_000, convert=at_least_one, help="keys that the records have")
    add_flag(consumer, "--payload", default=200, convert=_payload, help="bytes of each record's value, which is JSON")
    add_flag(consumer, "--page", default=500, convert=at_least_one, help="most records of one batch")
    add_flag(consumer, "--rounds", default=3, convert=at_least_one, help="how often each is run, the median counts")
    add_switch(consumer, "--quick", help="measure little: shows that it works, not how fast it is")
    add_switch(consumer, "--json", help="print the figures as one JSON object in the last line")
    consumer.set_defaults(run=run)


def _payload(text: str) -> int:
    from quiesce.bench.consumer_topic import LEAST_PAYLOAD
    from quiesce.bench.servers import MOST_PAYLOAD

    if not text.isdecimal() or not LEAST_PAYLOAD <= int(text) <= MOST_PAYLOAD:
        raise argparse.ArgumentTypeError(f"got {text!r}, takes a whole number from {LEAST_PAYLOAD} to {MOST_PAYLOAD}")
    return int(text)


@unwound()
def run(arguments: argparse.Namespace) -> int:
    # They say which package is missing, if one is.
    import asyncpg  # noqa: F401
    import confluent_kafka  # noqa: F401
    import prometheus_client  # noqa: F401

    from quiesce.bench.consumer_run import DURABLE, Plan, measure
    from quiesce.bench.figures import load
    from quiesce.bench.servers import described

    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:5.0f} s  {text}", file=sys.stderr, flush=True)

    most = 10_000 if arguments.quick else max(arguments.records, arguments.rows)
    plan = Plan(
        broker=arguments.broker,
        postgres=arguments.postgres,
        records=min(arguments.records, most),
        rows=min(arguments.rows, most),
        keys=arguments.keys,
        payload=arguments.payload,
        page=arguments.page,
        rounds=1 if arguments.quick else arguments.rounds,
    )
    told = described(plan.broker, DURABLE, plan.postgres)
    machine = {"servers": told, "cores": os.cpu_count() or 1, "load_before": round(load(), 2)}
    outcome = measure(plan, say)
    for figure in outcome.figures:
        print(figure.line())
    print(outcome.cores.line())
    print(f"{told}; {machine['cores']} cores shared by all, load {machine['load_before']:.2f} before")
    if arguments.json:
        how = {"records": plan.records, "rows": plan.rows, "keys": plan.keys, "payload": plan.payload}
        how |= {"page": plan.page, "rounds": plan.rounds}
        print(json.dumps({**outcome.as_json(), "plan": how, "machine": machine}))
    return 0 if outcome.passed else 1
