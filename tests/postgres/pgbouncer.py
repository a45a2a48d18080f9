"""PgBouncer before the tests' PostgreSQL, on loopback."""

import os
from collections.abc import Callable, Iterator
from typing import Self
from urllib.parse import urlsplit

import pytest

from quiesce.testing.loopback import answers, free_port
from quiesce.testing.postgres_address import PostgresAddress
from quiesce.testing.postgres_programs import server_account
from quiesce.testing.process import GuardedProcess, fresh_directory, remove_directory, spawn, wait_until
from quiesce.testing.shared_servers import pgbouncer as program


class LocalPgBouncer:
    """A PgBouncer of our own, for every database of one server. `pool_mode` is session, transaction or statement.

    Everybody gets in without a password. As root it runs as `nobody`, since it refuses root.
    """

    def __init__(self, dsn: str, pool_mode: str = "transaction", **settings: str) -> None:
        self._server = urlsplit(dsn)
        self._settings = {"pool_mode": pool_mode, **settings}
        self._process: GuardedProcess | None = None
        self.port = free_port()

    def __enter__(self) -> Self:
        found = program()
        assert found is not None, "the test needs the part pgbouncer"
        account = server_account("nobody")
        self._directory = fresh_directory("pgbouncer", account=account)
        (self._directory / "users").write_text(f'"{self._server.username}" ""\n')
        settings = {
            "listen_addr": "127.0.0.1",
            "listen_port": str(self.port),
            "unix_socket_dir": "",
            "auth_type": "trust",
            "auth_file": str(self._directory / "users"),
            **self._settings,
        }
        lines = [f"{name} = {value}" for name, value in settings.items()]
        servers = f"* = host={self._server.hostname} port={self._server.port}"
        configuration = self._directory / "pgbouncer.ini"
        configuration.write_text("\n".join(["[databases]", servers, "[pgbouncer]", *lines, ""]))
        self._process = process = spawn(
            [found, str(configuration)],
            log=self._directory / "pgbouncer.log",
            directory=self._directory,
            account=account,
        )
        wait_until(lambda: answers(process.pid, self.port), process, "PgBouncer", 10.0)
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
        remove_directory(self._directory, os.getpid())

    def dsn(self, dsn: str) -> str:
        """The way to the same database through here."""
        parts = urlsplit(dsn)
        return f"postgresql://{parts.username}@127.0.0.1:{self.port}{parts.path}?sslmode=disable"

    @property
    def log(self) -> str:
        return (self._directory / "pgbouncer.log").read_text(errors="replace")


OpenPgBouncer = Callable[..., LocalPgBouncer]


@pytest.fixture
def pgbouncer(postgres: PostgresAddress) -> Iterator[OpenPgBouncer]:
    """Starts a PgBouncer before the shared server: takes what `LocalPgBouncer` takes after the DSN."""
    started: list[LocalPgBouncer] = []

    def start(pool_mode: str = "transaction", **settings: str) -> LocalPgBouncer:
        started.append(LocalPgBouncer(postgres.admin_dsn, pool_mode, **settings))
        return started[-1].__enter__()

    yield start
    for bouncer in started:
        bouncer.__exit__()
