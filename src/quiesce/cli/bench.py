"""`quiesce bench lifecycle`: the figures of the lifecycle on this machine. The other topics stand beside it."""

import argparse
import importlib.util
import json
import os
import sys
from typing import Any

from quiesce.cli import bench_consumer, bench_relay
from quiesce.cli.flags import add_switch
from quiesce.cli.unwinding import unwound
from quiesce.errors import StartError


def add_to(verbs: Any) -> None:
    parser = verbs.add_parser("bench", help="measure on this machine", description="Measures on this machine.")
    topics = parser.add_subparsers(title="topics", required=True, metavar="TOPIC")
    lifecycle = topics.add_parser(
        "lifecycle",
        help="what starting, idling and stopping cost",
        description="Measures what an idle service, a critical section and a shutdown cost, with real processes and "
        "signals, each against its target. Takes less than a minute. On a busy machine the figures are too high.",
        epilog="Exit status: 0 if every target is kept, 1 otherwise.",
    )
    add_switch(lifecycle, "--quick", help="measure little: shows that it works, not how fast it is")
    add_switch(lifecycle, "--json", help="print the figures as one JSON object in the last line")
    lifecycle.set_defaults(run=run_lifecycle)
    bench_relay.add_to(topics)
    bench_consumer.add_to(topics)


@unwound()
def run_lifecycle(arguments: argparse.Namespace) -> int:
    if importlib.util.find_spec("uvicorn") is None:
        raise StartError('the bench measures HTTP as well and needs uvicorn: pip install "quiesce[http]"')
    from quiesce.bench.figures import Figure, Machine, load, outcome
    from quiesce.bench.measures import QUICK, Effort, measure

    def say(text: str) -> None:
        print(f"measuring {text} ...", file=sys.stderr, flush=True)

    before = load()
    figures: list[Figure] = []
    for figure in measure(QUICK if arguments.quick else Effort(), say):
        figures.append(figure)
        print(figure.line(), flush=True)
    machine = Machine(os.cpu_count() or 1, before, load())
    print(machine.line())
    result = outcome(figures, machine)
    if arguments.json:
        print(json.dumps(result))
    return 0 if result["passed"] else 1
