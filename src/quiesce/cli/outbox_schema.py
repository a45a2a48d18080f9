"""`quiesce outbox schema show|apply|validate`."""

import argparse
from typing import Any

from quiesce.cli.flags import add_flag, add_repeated_flag, add_switch
from quiesce.cli.outbox_flags import add_dsn, add_json, dsn, run
from quiesce.cli.outbox_table import print_json
from quiesce.cli.schema_validate import validate
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
    _add_store(show, "and leave the tables the indexes of one kind of store")
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
    _add_store(apply, "give the tables to one kind of store, and leave them the indexes that it has a use for")
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


def _add_store(parser: argparse.ArgumentParser, says: str) -> None:
    add_flag(parser, "--for-store", default=None, choices=("row", "log"), help=says)


def run_show(arguments: argparse.Namespace) -> int:
    from quiesce.postgres import schema

    print(schema.show(arguments.for_store))
    return ExitCode.CLEAN


def run_apply(arguments: argparse.Namespace) -> int:
    return run(_apply(arguments))


def run_validate(arguments: argparse.Namespace) -> int:
    from quiesce.outbox.schema_steps import OUTBOX

    return run(validate(dsn(arguments), OUTBOX, as_json=arguments.json))


async def _apply(arguments: argparse.Namespace) -> int:
    from quiesce.postgres import schema
    from quiesce.postgres.grants import grants, role
    from quiesce.postgres.operating import operating
    from quiesce.postgres.outbox_control import keep_to_store

    roles, dry_run = [role(text) for text in arguments.grants], arguments.dry_run
    async with operating(dsn(arguments), require=False) as connection:
        steps = [f"{step.version:04} {step.name}" for step in await schema.pending(connection)]
        before = await schema.applied_version(connection)
        after = before
        if not dry_run:
            async with connection.transaction():
                after = await schema.apply(connection)
                if arguments.for_store is not None:
                    await keep_to_store(connection, arguments.for_store, "outbox schema")
        told = [line for kind, name in roles for line in await grants(connection, kind, name)]
    if arguments.json:
        its = {"version": after, "was": before, "steps": steps, "store": arguments.for_store}
        print_json(its | {"grants": told, "dry_run": dry_run})
        return ExitCode.CLEAN
    if dry_run:
        said = f"outbox schema: version {before}, would apply {', '.join(steps) or 'nothing'}"
        said += f", and give it to {arguments.for_store} stores" if arguments.for_store else ""
    else:
        said = f"outbox schema: version {after}" + (", already there" if before == after else f", was {before}")
        said += f", for {arguments.for_store} stores" if arguments.for_store else ""
    # Beside SQL that may go straight into psql, it is a comment.
    print(f"-- {said}" if roles else said)
    for line in told:
        print(line)
    return ExitCode.CLEAN
