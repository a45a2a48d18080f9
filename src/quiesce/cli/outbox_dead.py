"""`quiesce outbox dead`: the dead letters."""

import argparse
from typing import Any

from quiesce.cli.outbox_flags import add_dsn, add_json, add_limit, add_selection, dsn, run, selection
from quiesce.cli.outbox_table import as_dict, instant, payload_of, print_json, print_table, shortened
from quiesce.lifecycle.report import ExitCode


def add_to(topics: Any) -> None:
    parser = topics.add_parser(
        "dead",
        help="the dead letters",
        description="Lists dead letters with their reasons, in the order in which their events were written.",
    )
    add_dsn(parser)
    add_selection(parser)
    add_limit(parser)
    add_json(parser)
    parser.set_defaults(run=run_dead)


def run_dead(arguments: argparse.Namespace) -> int:
    return run(_dead(arguments))


async def _dead(arguments: argparse.Namespace) -> int:
    from quiesce.postgres.dead_letters import Selection, count, dead_letters
    from quiesce.postgres.operating import operating

    chosen, payloads = selection(arguments), arguments.payloads
    async with operating(dsn(arguments)) as connection:
        total = await count(connection, chosen)
        events = await dead_letters(connection, chosen, limit=arguments.limit, payloads=payloads)
    if arguments.json:
        print_json({"total": total, "events": [as_dict(event, payloads=payloads) for event in events]})
        return ExitCode.CLEAN
    if not total:
        print("no dead letters" if chosen == Selection() else "no dead letters that match")
        return ExitCode.CLEAN
    print_table(
        ("event", "dead since", "key", "topic", "type", "payload", "reason"),
        (
            (
                event.id,
                instant(event.parked_at),
                shortened(event.key),
                shortened(event.topic),
                shortened(event.type),
                payload_of(event, payloads=payloads),
                event.reason,
            )
            for event in events
        ),
    )
    if total > len(events):
        print(f"{total - len(events):,} more")
    return ExitCode.CLEAN
