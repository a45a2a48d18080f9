"""A PostgreSQL cluster, the data directory of one server: made by initdb, with settings for tests."""

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from quiesce.errors import StartError
from quiesce.testing.postgres_programs import run
from quiesce.testing.process import Account

# The kernel's limit for the path of a Unix socket, with the shorter one of the BSDs and macOS.
_SOCKET_PATH_LIMIT = 103

_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "max_connections": "300",
    "shared_buffers": "64MB",
    "synchronous_commit": "on",  # what was committed survives SIGKILL even without fsync
    "full_page_writes": "off",
    "checkpoint_timeout": "30min",
    "max_wal_size": "2GB",
    "jit": "off",
    # In the data directory, which goes away with us, and not in /dev/shm, where a kill would leave it.
    "dynamic_shared_memory_type": "mmap",
    "log_line_prefix": "%m [%p] %a ",
    "timezone": "UTC",
}


@dataclass(frozen=True)
class PostgresCluster:
    """The cluster in `data`, of the PostgreSQL whose programs are in `programs`; it belongs to `account`, or to us."""

    programs: Path
    data: Path
    account: Account | None

    def make(self, sockets: Path, *, durable: bool, settings: Mapping[str, str]) -> None:
        """Make it: UTF-8, no password, Unix sockets in the directory `sockets`.

        Not `durable`: nothing is forced to the disk. `settings` are added to those of tests, or replace them. Raises
        StartError with one line that names the cause; what was made until then stays.
        """
        if len(os.fsencode(sockets / ".s.PGSQL.65535")) > _SOCKET_PATH_LIMIT:
            raise StartError(f"{sockets} is too long a path for a Unix socket: set TMPDIR to a shorter one")
        run(
            [
                str(self.programs / "initdb"),
                f"--pgdata={self.data}",
                "--username=postgres",
                "--auth=trust",
                "--encoding=UTF8",
                "--locale=C",
                "--locale-provider=builtin",
                "--builtin-locale=C.UTF-8",
                "--no-sync",
                "--no-instructions",
            ],
            self.account,
        )
        given = {**_SETTINGS, "fsync": "on" if durable else "off", **settings}
        lines = [f"{name} = '{value}'" for name, value in given.items()]
        lines.append(f"unix_socket_directories = '{sockets}'")
        try:
            with (self.data / "postgresql.conf").open("a") as conf:
                conf.write("\n".join(lines) + "\n")
        except OSError as error:
            raise StartError(f"cannot write PostgreSQL's settings in {sockets}: {error.strerror}") from error

    def server(self, port: int) -> list[str]:
        """The command that runs its server on the port."""
        return [str(self.programs / "postgres"), "-D", str(self.data), "-p", str(port)]

    def ready(self, pid: int) -> bool:
        """Whether the server with this process id takes connections."""
        # The server writes its state into the last line. A file of a killed server has another process id.
        with contextlib.suppress(OSError, IndexError):
            lines = (self.data / "postmaster.pid").read_text().splitlines()
            return lines[0] == str(pid) and lines[7].strip() == "ready"
        return False
