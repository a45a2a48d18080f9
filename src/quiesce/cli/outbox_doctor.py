"""`quiesce outbox doctor`: looks over what the promises rest on."""

import argparse
import asyncio
from typing import TYPE_CHECKING, Any

from quiesce.cli.flags import add_flag, add_repeated_flag
from quiesce.cli.kafka_flags import add_kafka, kafka_config
from quiesce.cli.outbox_doctor_relays import metrics_url, relay_checks
from quiesce.cli.outbox_flags import add_dsn, add_json, dsn, run
from quiesce.cli.outbox_table import print_json
from quiesce.errors import SettingsError
from quiesce.lifecycle.report import ExitCode
from quiesce.outbox.event import MAX_EVENT_BYTES

if TYPE_CHECKING:
    from quiesce.outbox.checks import Check


def add_to(topics: Any) -> None:
    parser = topics.add_parser(
        "doctor",
        help="look over what the promises rest on",
        description="Looks at the database, the tables, the relays and, with --kafka, at what the topics promise. It "
        "changes nothing. With --metrics also at what relays have measured.",
        epilog="Exit status: 0 nothing is bad, though there may be warnings; 1 something is.",
    )
    add_dsn(parser)
    add_kafka(parser, "look at the topics too")
    add_repeated_flag(
        parser,
        "--topic",
        convert=_topic,
        metavar="NAME[=N]",
        help="a topic to look at, beside those of recent events, and how many partitions it was made with",
    )
    add_flag(
        parser,
        "--max-event-bytes",
        default=MAX_EVENT_BYTES,
        convert=_bytes,
        metavar="N",
        help="what your writers enqueue at most",
    )
    add_repeated_flag(
        parser,
        "--metrics",
        convert=metrics_url,
        metavar="URL",
        help="metrics of a service with a relay, such as http://host:8080/metrics: holds what is in flight, and how "
        "fast the broker answers, against the bound of a stop",
    )
    add_json(parser)
    parser.set_defaults(run=run_doctor)


def run_doctor(arguments: argparse.Namespace) -> int:
    return run(_doctor(arguments))


async def _doctor(arguments: argparse.Namespace) -> int:
    from quiesce.outbox.checks import worst
    from quiesce.postgres.doctor import examine, recent_topics
    from quiesce.postgres.operating import operating

    if arguments.kafka is None and (arguments.kafka_config is not None or arguments.topic):
        raise SettingsError("--kafka: not set; --kafka-config and --topic take it beside them")
    config = kafka_config(arguments.kafka_config)
    async with operating(dsn(arguments), require=False) as connection:
        checks = await examine(connection)
        topics = {name for name, _ in arguments.topic}
        if arguments.kafka is not None and not any(c.name == "schema" and c.verdict == "bad" for c in checks):
            topics |= set(await recent_topics(connection))
    if arguments.kafka is not None:
        from quiesce.kafka.topic_promises import topic_promises

        checks += await topic_promises(
            {**config, "bootstrap.servers": arguments.kafka},
            topics,
            max_event_bytes=arguments.max_event_bytes,
            partitions={name: number for name, number in arguments.topic if number is not None},
        )
    checks += await asyncio.to_thread(relay_checks, arguments.metrics)
    verdict = worst(checks)
    if arguments.json:
        print_json({"verdict": verdict, "checks": [check.as_dict() for check in checks]})
    else:
        _print(checks)
    return ExitCode.FAILED if verdict == "bad" else ExitCode.CLEAN


def _print(checks: "list[Check]") -> None:
    width = max(len(check.name) for check in checks)
    for check in checks:
        mark = check.verdict.upper() if check.verdict == "bad" else check.verdict
        print(f"{mark:<4}  {check.name:<{width}}  {check.found}")
        if check.advice:
            print(f"{'':4}  {'':{width}}  -> {check.advice}")


def _topic(text: str) -> tuple[str, int | None]:
    name, equals, number = text.partition("=")
    if not name or (equals and not (number.isdecimal() and int(number) > 0)):
        raise argparse.ArgumentTypeError(f"got {text!r}, takes a topic, or a topic=N with its number of partitions")
    return name, int(number) if equals else None


def _bytes(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"got {text!r}, takes bytes, 1 or more")
    return int(text)
