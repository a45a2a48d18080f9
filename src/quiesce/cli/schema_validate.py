"""`quiesce outbox schema validate`, and the same of the inbox."""

import sys
from typing import TYPE_CHECKING

from quiesce.cli.outbox_table import print_json
from quiesce.errors import SchemaMissing
from quiesce.lifecycle.report import ExitCode

if TYPE_CHECKING:
    from quiesce.migrations import Tables


async def validate(where: str, tables: "Tables", *, as_json: bool) -> int:
    """Compares the tables of the database at this DSN with what they should be, and prints what differs.

    Raises:
        SchemaMissing: there are none. As JSON that is a difference too.
    """
    from quiesce.postgres.operating import operating
    from quiesce.postgres.schema_differences import differences

    async with operating(where, require=False, tables=tables) as connection:
        try:
            found = await differences(connection, tables)
        except SchemaMissing as error:
            if not as_json:
                raise
            found = [str(error)]
    if as_json:
        print_json({"version": tables.latest_version(), "valid": not found, "differences": found})
    elif found:
        for line in found:
            print(line)
        points = "1 point" if len(found) == 1 else f"{len(found)} points"
        print(f"quiesce: the {tables.part}'s tables differ in {points}", file=sys.stderr)
    else:
        print(f"{tables.part} schema: as version {tables.latest_version()} makes it")
    return ExitCode.FAILED if found else ExitCode.CLEAN
