"""`quiesce inbox schema show|apply|validate`."""

import argparse
from typing import Any

from quiesce.cli.outbox_flags import add_dsn, add_json, dsn, run
from quiesce.cli.schema_validate import validate
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
    from quiesce.inbox.schema_steps import INBOX

    return run(validate(dsn(arguments), INBOX, as_json=arguments.json))


async def _apply(where: str) -> int:
    from quiesce.inbox.schema_steps import INBOX
    from quiesce.postgres import connect, inbox_schema, migrating

    async with connect(where) as connection:
        before = await migrating.applied_version(connection, INBOX)
        after = await inbox_schema.apply(connection)
    print(f"inbox schema: version {after}" + (", already there" if before == after else f", was {before}"))
    return ExitCode.CLEAN
