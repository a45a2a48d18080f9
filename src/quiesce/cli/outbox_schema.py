"""`quiesce outbox schema show|apply|validate`."""

import argparse
import sys
from typing import Any

from quiesce.cli.flags import add_repeated_flag, add_switch
from quiesce.cli.outbox_flags import add_dsn, add_json, dsn, run
from quiesce.cli.outbox_table import print_json
from quiesce.lifecycle.report import ExitCode


def add_to(topics: Any) -> None:
    schema = topics.add_parser(
        "schema",
        help="the outbox's tables",
        description="Shows, applies or checks the SQL of the outbox's tables. Applying twice, or from two places at "
        "once, is safe.",
    )
    acts = schema.add_subparsers(title="acts", required=True, metavar="ACT")
    show = acts.add_parser("show", help="print the SQL", description="Prints the SQL, for a migration tool of yours.")
    show.set_defaults(run=run_show)
    apply = acts.add_parser(
        "apply",
        help="apply what is missing",
        description="Applies what is missing. With --grants it prints the rights that roles need, and gives none.",
    )
    add_dsn(apply)
    add_repeated_flag(
        apply,
        "--grants",
        metavar="KIND=ROLE",
        help="print the rights of a role as SQL; its kind is writer, relay or operator",
    )
    add_switch(apply, "--dry-run", help="say which steps are missing, and do nothing")
    add_json(apply)
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
    from quiesce.postgres import schema

    print(schema.show())
    return ExitCode.CLEAN


def run_apply(arguments: argparse.Namespace) -> int:
    return run(_apply(arguments))


def run_validate(arguments: argparse.Namespace) -> int:
    return run(_validate(dsn(arguments), arguments.json))


async def _apply(arguments: argparse.Namespace) -> int:
    from quiesce.postgres import schema
    from quiesce.postgres.grants import grants, role
    from quiesce.postgres.operating import operating

    roles, dry_run = [role(text) for text in arguments.grants], arguments.dry_run
    async with operating(dsn(arguments), require=False) as connection:
        steps = [f"{step.version:04} {step.name}" for step in await schema.pending(connection)]
        before = await schema.applied_version(connection)
        after = before if dry_run else await schema.apply(connection)
        told = [line for kind, name in roles for line in await grants(connection, kind, name)]
    if arguments.json:
        print_json({"version": after, "was": before, "steps": steps, "grants": told, "dry_run": dry_run})
        return ExitCode.CLEAN
    if dry_run:
        said = f"outbox schema: version {before}, would apply {', '.join(steps) or 'nothing'}"
    else:
        said = f"outbox schema: version {after}" + (", already there" if before == after else f", was {before}")
    # Beside SQL that may go straight into psql, it is a comment.
    print(f"-- {said}" if roles else said)
    for line in told:
        print(line)
    return ExitCode.CLEAN


async def _validate(where: str, as_json: bool) -> int:
    from quiesce.postgres import schema
    from quiesce.postgres.operating import operating
    from quiesce.postgres.schema_differences import differences

    async with operating(where, require=False) as connection:
        found = await differences(connection)
    if as_json:
        print_json({"version": schema.latest_version(), "valid": not found, "differences": found})
    elif found:
        for line in found:
            print(line)
        print(f"quiesce: the outbox's tables differ in {len(found)} points", file=sys.stderr)
    else:
        print(f"outbox schema: as version {schema.latest_version()} makes it")
    return ExitCode.FAILED if found else ExitCode.CLEAN
