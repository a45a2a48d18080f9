"""Talking to a PostgreSQL server that tests use, whoever started it: databases are made through psql."""

import os
import subprocess
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

from quiesce.errors import StartError
from quiesce.testing.postgres_programs import INSTALL, psql

_SQL_BOUND = 30.0


@dataclass(frozen=True)
class PostgresAddress:
    """A PostgreSQL server that runs somewhere, ours or not: a DSN of a role that may create databases."""

    admin_dsn: str

    def dsn(self, database: str = "postgres") -> str:
        """The DSN of one database of this server."""
        return urlunsplit(urlsplit(self.admin_dsn)._replace(path=f"/{database}"))

    def execute(self, sql: str, database: str | None = None) -> str:
        """Run SQL (one statement or many) and return the output, columns parted by `|`.

        Raises StartError with the server's message; the first error ends the run.
        """
        program = psql()
        if program is None:
            raise StartError(f"no psql to reach {_without_secret(self.admin_dsn)}: {INSTALL}")
        try:
            done = subprocess.run(
                [
                    program,
                    "-XqAt",
                    "-v",
                    "ON_ERROR_STOP=1",
                    self.admin_dsn if database is None else self.dsn(database),
                ],
                input=sql,
                capture_output=True,
                text=True,
                timeout=_SQL_BOUND,
                env={**os.environ, "PGCONNECT_TIMEOUT": "5", "PGCLIENTENCODING": "UTF8"},
            )
        except subprocess.TimeoutExpired as error:
            where = _without_secret(self.admin_dsn)
            raise StartError(f"{where} did not answer within {_SQL_BOUND:g} s") from error
        if done.returncode != 0:
            raise StartError(f"{_without_secret(self.admin_dsn)}: {done.stderr.strip()}")
        return done.stdout.rstrip("\n")

    def create_database(self, name: str, template: str | None = None) -> str:
        """Create a database, a copy of `template` if one is named. Returns its DSN."""
        clause = f" TEMPLATE {_quoted(template)}" if template else ""
        self.execute(f"CREATE DATABASE {_quoted(name)}{clause}")
        return self.dsn(name)

    def drop_database(self, name: str) -> None:
        """Drop a database, with the connections that are still open to it. A missing one is fine."""
        self.execute(f"DROP DATABASE IF EXISTS {_quoted(name)} WITH (FORCE)")

    def server_version(self) -> str:
        """The version that the running server tells, such as `18.1`."""
        return self.execute("SHOW server_version").split()[0]


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _without_secret(dsn: str) -> str:
    parts = urlsplit(dsn)
    return f"PostgreSQL at {parts.hostname or 'its socket'}:{parts.port or 5432}"
