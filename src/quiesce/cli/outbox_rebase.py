"""`quiesce outbox rebase`: the log store's cursors after a restore or a failover."""

import argparse
from typing import TYPE_CHECKING, Any

from quiesce.cli.flags import add_switch
from quiesce.cli.outbox_flags import add_changing, add_dsn, add_json, dsn, run, said_by
from quiesce.cli.outbox_table import print_json
from quiesce.errors import SettingsError
from quiesce.lifecycle.report import ExitCode

if TYPE_CHECKING:
    from quiesce.postgres.rebase import Choice, Rebased


def add_to(topics: Any) -> None:
    parser = topics.add_parser(
        "rebase",
        help="give the log store's cursors a meaning again, after a restore or a failover",
        description="The cursors of the log store mean something in one history of one database. After a restore, a "
        "recovery to a point in time or a failover the lanes stand until you decide. --resend-all-unknown: send all "
        "that the recorded cursors had not read; events that had been sent since are sent again, with the ids they "
        "had, and nothing is lost. --skip-to-now: all that is in the table counts as dispatched, also what was to be "
        "retried; what had not been sent never is. Dead letters stay either way. Begin with --dry-run.",
    )
    add_dsn(parser)
    add_switch(parser, "--resend-all-unknown", help="send what the recorded cursors had not read")
    add_switch(parser, "--skip-to-now", help="count all that is there as dispatched")
    add_switch(parser, "--anyway", help="skip also where nothing says that the database was replaced")
    add_changing(parser)
    add_json(parser)
    parser.set_defaults(run=run_rebase)


def run_rebase(arguments: argparse.Namespace) -> int:
    return run(_rebase(arguments))


async def _rebase(arguments: argparse.Namespace) -> int:
    from quiesce.postgres.operating import operating
    from quiesce.postgres.rebase import look, rebase

    choice = _choice(arguments)
    async with operating(dsn(arguments)) as connection:
        if arguments.dry_run or choice is None:
            found = await look(connection)
        else:
            found = await rebase(connection, choice, said_by=said_by(arguments), anyway=arguments.anyway)
    if arguments.json:
        print_json(
            {
                "choice": choice,
                "dry_run": arguments.dry_run,
                "why": found.replaced.why,
                "unread": found.unread,
                "parked": found.parked,
                "behind_dead": found.behind_dead,
                "foreign": found.foreign,
                "system_identifier": found.replaced.now.system_identifier,
                "timeline": found.replaced.now.timeline,
            }
        )
    else:
        _print(found, choice, arguments.dry_run)
    return ExitCode.CLEAN


def _choice(arguments: argparse.Namespace) -> "Choice | None":
    if arguments.resend_all_unknown and arguments.skip_to_now:
        raise SettingsError("rebase: takes --resend-all-unknown or --skip-to-now, not both")
    if not (arguments.resend_all_unknown or arguments.skip_to_now or arguments.dry_run):
        raise SettingsError("rebase: takes --resend-all-unknown or --skip-to-now; --dry-run shows what each would do")
    if arguments.resend_all_unknown:
        return "resend-all-unknown"
    return "skip-to-now" if arguments.skip_to_now else None


def _print(found: "Rebased", choice: "Choice | None", dry_run: bool) -> None:
    for why in found.replaced.why or ["nothing says that the database was replaced"]:
        print(why)
    events = f"{found.unread:,} events that were not read, {found.parked:,} that were set aside to be retried"
    if choice != "skip-to-now":
        print(f"{'--resend-all-unknown would send' if dry_run else 'will be sent'}: {events}")
        if found.behind_dead:
            held = "waits behind a dead letter" if found.behind_dead == 1 else "wait behind dead letters"
            print(f"{found.behind_dead:,} of these {held} of their key, and until that is redriven or discarded")
    if choice != "resend-all-unknown":
        print(f"{'--skip-to-now would never send' if dry_run else 'will never be sent'}: {events}")
    if found.foreign:
        adopted = "would get" if dry_run else "got"
        print(f"{found.foreign:,} events carry transaction numbers of another history; they {adopted} a neutral one")
