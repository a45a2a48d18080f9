"""The tables as versioned steps of SQL that ship with the package. Read here, run by whoever has a connection."""

import re
from dataclasses import dataclass
from importlib.resources import files

# One number for all of our migrations; any will do that nobody else takes.
LOCK = 0x7175_6965_7363_65
"""The advisory lock that whoever applies the steps holds meanwhile."""

TABLES = ("quiesce_schema", "outbox_event", "outbox_parked", "outbox_lane", "outbox_control", "outbox_audit")
"""The tables that the steps make."""

DROP = (
    "DROP TABLE IF EXISTS outbox_audit, outbox_control, outbox_lane, outbox_parked, outbox_event, quiesce_schema",
    "DROP FUNCTION IF EXISTS outbox_lane(text)",
)
"""Takes all of it away, events and letters included."""

_MIGRATION = re.compile(r"(\d{4})_(\w+)\.sql")
# What may hold a semicolon that ends nothing, and the one that does.
_PIECE = re.compile(
    r"""--[^\n]* | E'(?:[^'\\]|\\.|'')*' | '(?:[^']|'')*' | "[^"]*" | \$(\w*)\$.*?\$\1\$ | (?P<end>;)""",
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)
_COMMENT = re.compile(r"\s*(--[^\n]*\s*)*")


@dataclass(frozen=True, slots=True)
class Migration:
    """One step of the schema. Its SQL records its own version, so it may be run by psql as well."""

    version: int
    name: str
    sql: str

    def statements(self) -> list[str]:
        """The same, one statement each: what drivers take that prepare whatever they send."""
        found, begun = [], 0
        for piece in _PIECE.finditer(self.sql):
            if piece["end"]:
                found.append(self.sql[begun : piece.start()])
                begun = piece.end()
        found.append(self.sql[begun:])
        return [one.strip() for one in found if not _COMMENT.fullmatch(one)]


def migrations() -> list[Migration]:
    """All migrations of this package, oldest first."""
    found = []
    for file in files("quiesce.outbox").joinpath("migrations").iterdir():
        named = _MIGRATION.fullmatch(file.name)
        if named:
            found.append(Migration(int(named[1]), named[2], file.read_text(encoding="utf-8")))
    return sorted(found, key=lambda migration: migration.version)


def latest_version() -> int:
    """The version that this package brings."""
    return migrations()[-1].version


def show() -> str:
    """The SQL of all migrations, to be read, or run by hand: `psql --single-transaction`."""
    return "\n".join(f"-- {step.version:04} {step.name}\n\n{step.sql}" for step in migrations())
