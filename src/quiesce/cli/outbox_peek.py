"""`quiesce outbox peek`: the events that wait."""

import argparse
from typing import Any

from quiesce.cli.flags import add_flag
from quiesce.cli.outbox_flags import add_dsn, add_json, add_limit, dsn, lane, run
from quiesce.cli.outbox_table import as_dict, instant, payload_of, print_json, print_table, shortened
from quiesce.lifecycle.report import ExitCode


def add_to(topics: Any) -> None:
    parser = topics.add_parser(
        "peek",
        help="the events that wait",
        description="Shows the first events that wait, in the order in which they were written. It takes nothing.",
    )
    add_dsn(parser)
    add_flag(parser, "--key", default=None, help="of this key")
    add_flag(parser, "--topic", default=None, help="of this topic")
    add_flag(parser, "--lane", default=None, convert=lane, metavar="N", help="of this lane")
    add_limit(parser)
    add_json(parser)
    parser.set_defaults(run=run_peek)


def run_peek(arguments: argparse.Namespace) -> int:
    return run(_peek(arguments))


async def _peek(arguments: argparse.Namespace) -> int:
    from quiesce.postgres.operating import operating
    from quiesce.postgres.peeking import peek

    payloads = arguments.payloads
    async with operating(dsn(arguments)) as connection:
        events = await peek(
            connection,
            key=arguments.key,
            topic=arguments.topic,
            lane=arguments.lane,
            limit=arguments.limit,
            payloads=payloads,
        )
    if arguments.json:
        print_json({"events": [as_dict(event, payloads=payloads) for event in events]})
    elif not events:
        narrowed = (arguments.key, arguments.topic, arguments.lane) != (None, None, None)
        print("nothing that matches waits" if narrowed else "nothing waits")
    else:
        print_table(
            ("event", "state", "created at", "lane", "key", "topic", "type", "reason", "payload"),
            (
                (
                    event.id,
                    event.state,
                    instant(event.created_at),
                    event.lane,
                    shortened(event.key),
                    shortened(event.topic),
                    shortened(event.type),
                    shortened(event.reason),
                    payload_of(event, payloads=payloads),
                )
                for event in events
            ),
        )
    return ExitCode.CLEAN
