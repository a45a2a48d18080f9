"""`quiesce inbox schema show|apply|validate`."""

import argparse
import sys
from typing import Any

from quiesce.cli.outbox_flags import add_dsn, add_json, dsn, run
from quiesce.cli.outbox_table import print_json
from quiesce.lifecycle.report import ExitCode


def add_to(topics: Any) -> None:
    schema = topics.add_parser(
        "schema",
        help="the inbox's tables",
        description="Shows, applies or checks the SQL of the inbox's tables. Applying twice, or from two places at "
        "once, is safe.",
    )
    acts = schema.add_subparsers(title="acts", required=True, metavar="ACT")
    show = acts.add_parser("show", help="print the SQL", description="Prints the SQL, for a migration tool of yours.")
    show.set_defaults(run=run_show)
    apply = acts.add_parser("apply", help="apply what is missing", description="Applies what is missing.")
    add_dsn(apply)
    apply.set_defaults(run=run_apply)
    validate = acts.add_parser(
        "validate",
        help="compare the tables with what they should be",
        description="Compares the tables with those that this package makes, in a schema that is thrown away again.",
        epilog="Exit status: 0 they are as they should be; 1 they differ, one line a difference.",
    )
    add_dsn(validate)
    add_json(validate)
    validate.set_defaults(run=run_validate)


def run_show(arguments: argparse.Namespace) -> int:
    from quiesce.inbox.schema_steps import INBOX

    print(INBOX.show())
    return ExitCode.CLEAN


def run_apply(arguments: argparse.Namespace) -> int:
    return run(_apply(dsn(arguments)))


def run_validate(arguments: argparse.Namespace) -> int:
    return run(_validate(dsn(arguments), arguments.json))


async def _apply(where: str) -> int:
    from quiesce.postgres import connect, inbox_schema

    async with connect(where) as connection:
        before = await inbox_schema.applied_version(connection)
        after = await inbox_schema.apply(connection)
    print(f"inbox schema: version {after}" + (", already there" if before == after else f", was {before}"))
    return ExitCode.CLEAN


async def _validate(where: str, as_json: bool) -> int:
    from quiesce.inbox.schema_steps import INBOX
    from quiesce.postgres.operating import operating
    from quiesce.postgres.schema_differences import differences

    async with operating(where, require=False, tables=INBOX) as connection:
        found = await differences(connection, INBOX)
    if as_json:
        print_json({"version": INBOX.latest_version(), "valid": not found, "differences": found})
    elif found:
        for line in found:
            print(line)
        print(f"quiesce: the inbox's tables differ in {len(found)} points", file=sys.stderr)
    else:
        print(f"inbox schema: as version {INBOX.latest_version()} makes it")
    return ExitCode.FAILED if found else ExitCode.CLEAN
