"""Tables as versioned steps of SQL that ship with the package. Read here, run by whoever has a connection."""

import re
from dataclasses import dataclass
from importlib.resources import files

from quiesce.errors import SchemaMissing

# One number for all of our migrations; any will do that nobody else takes.
LOCK = 0x7175_6965_7363_65
"""The advisory lock that whoever applies the steps holds meanwhile."""

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


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of one part of the package, and where the steps lie that make them.

    Args:
        part: as in the command, such as `outbox`.
        package: its folder `migrations` has the files.
        names: all of the tables.
        main: the one whose absence means that none is there.
        versions: the one in which each step records itself.
        functions: SQL functions that the steps make.
        drop: statements that take all of it away, rows included.
    """

    part: str
    package: str
    names: tuple[str, ...]
    main: str
    versions: str
    drop: tuple[str, ...]
    functions: tuple[str, ...] = ()

    @property
    def apply_command(self) -> str:
        return f"quiesce {self.part} schema apply"

    def missing(self, detail: str = "") -> SchemaMissing:
        """The error for a table or a column that is not there."""
        told = f" ({' '.join(detail.split())})" if detail else ""
        return SchemaMissing(f"the {self.part}'s tables are missing or too old{told}. Run: {self.apply_command}")

    def migrations(self) -> list[Migration]:
        """All steps, oldest first."""
        found = []
        for file in files(self.package).joinpath("migrations").iterdir():
            named = _MIGRATION.fullmatch(file.name)
            if named:
                found.append(Migration(int(named[1]), named[2], file.read_text(encoding="utf-8")))
        return sorted(found, key=lambda migration: migration.version)

    def latest_version(self) -> int:
        """The version that this package brings."""
        return self.migrations()[-1].version

    def show(self) -> str:
        """The SQL of all steps, to be read, or run by hand: `psql --single-transaction`."""
        return "\n".join(f"-- {step.version:04} {step.name}\n\n{step.sql}" for step in self.migrations())
