"""`quiesce outbox status`: what waits, since when, what is set aside, who owns the lanes."""

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from quiesce.cli.outbox_flags import add_dsn, add_json, dsn, run
from quiesce.cli.outbox_table import instant, print_json, print_table, shown
from quiesce.lifecycle.report import ExitCode

if TYPE_CHECKING:
    from quiesce.postgres.outbox_status import OutboxStatus


def add_to(topics: Any) -> None:
    parser = topics.add_parser(
        "status",
        help="what waits, what is set aside, who works",
        description="Tells how the outbox stands. It locks nothing. Beyond 100,000 events a number is estimated, and "
        "says so.",
    )
    add_dsn(parser)
    add_json(parser)
    parser.set_defaults(run=run_status)


def run_status(arguments: argparse.Namespace) -> int:
    return run(_status(dsn(arguments), arguments.json))


async def _status(where: str, as_json: bool) -> int:
    from quiesce.postgres.operating import operating
    from quiesce.postgres.outbox_status import status

    async with operating(where) as connection:
        now = await status(connection)
    if as_json:
        print_json(
            {
                "at": now.at,
                "store": now.store,
                "paused": None if now.paused is None else asdict(now.paused),
                "waiting": asdict(now.waiting),
                "oldest_seconds": now.oldest,
                "dispatched": asdict(now.dispatched),
                "parked": dict(now.parked),
                "lanes": [asdict(lane) for lane in now.lanes],
            }
        )
    else:
        _print(now)
    return ExitCode.CLEAN


def _print(now: "OutboxStatus") -> None:
    print(f"store       {'none has opened it yet' if now.store is None else f'{now.store} store'}")
    if now.paused is not None:
        why = f": {shown(now.paused.why)}" if now.paused.why else ""
        print(f"PAUSED      since {instant(now.paused.at)} by {shown(now.paused.by)}{why}")
    since = "" if now.oldest is None else f", the oldest for {now.oldest:.1f} s"
    print(f"waiting     {now.waiting} events{since}")
    print(f"dispatched  {now.dispatched}")
    print(f"set aside   {', '.join(f'{state} {count:,}' for state, count in now.parked.items())}")
    if now.lanes:
        print()
        print_table(
            ("lane", "waiting", "dispatched", "moved at", "epoch", "owned since", "owner"),
            (
                (
                    lane.number,
                    lane.waiting,
                    f"{lane.dispatched:,}",
                    instant(lane.moved_at),
                    lane.epoch,
                    "" if lane.owner is None else instant(lane.owned_at),
                    lane.owner or "nobody",
                )
                for lane in now.lanes
            ),
        )
