"""The servers that all tests of one run share: started once, in one process, and known to the others by address."""

import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from quiesce.errors import StartError
from quiesce.testing.kafka import LocalKafka
from quiesce.testing.kafka_programs import java_version
from quiesce.testing.postgres import LocalPostgres
from quiesce.testing.postgres_address import PostgresAddress
from quiesce.testing.tansu import LocalTansu

ADDRESS_VARIABLES = {"postgres": "QUIESCE_TEST_POSTGRES_DSN", "kafka": "QUIESCE_TEST_KAFKA_BOOTSTRAP"}
TITLES = {
    "postgres": "PostgreSQL",
    "kafka": "Apache Kafka",
    "tansu": "the embedded broker",
    "pgbouncer": "PgBouncer",
    "namespaces": "namespaces of their own",
}
# Inside the limit of a test, so that a server that does not start is told as that and not as a slow test.
_ANSWER_BOUND = 50.0
_POLL = 0.02


class SharedAddresses:
    """The servers of a run, seen from a process that does not own them.

    `missing` says which parts cannot be had here, each with the way to get it.
    """

    def __init__(self, answers: Path, missing: Mapping[str, str]) -> None:
        self.answers = answers
        self.missing = missing

    def address(self, part: str) -> str:
        """The DSN or the bootstrap address of a part; waits while it is starting.

        Raises StartError when it could not start, with the reason, or does not within 50 s.
        """
        if part in self.missing:
            raise StartError(self.missing[part])
        if given := _given(part):
            return given
        answer = self.answers / part
        until = time.monotonic() + _ANSWER_BOUND
        while not answer.exists():
            if time.monotonic() > until:
                raise StartError(f"{TITLES[part]} did not start within {_ANSWER_BOUND:g} s")
            time.sleep(_POLL)
        told: dict[str, str] = json.loads(answer.read_text())
        if "error" in told:
            raise StartError(f"{TITLES[part]} did not start: {told['error']}")
        return told["address"]


class SharedServers:
    """One PostgreSQL and one Apache Kafka for a run of tests, seen from the process that owns them.

    An address in QUIESCE_TEST_POSTGRES_DSN or QUIESCE_TEST_KAFKA_BOOTSTRAP wins: that part is never started
    here. Other processes make themselves a `SharedAddresses` from `answers` and `missing`.
    """

    def __init__(self) -> None:
        self.missing = _missing_parts()
        # One file a part, written when it runs or could not start.
        self.answers = Path(tempfile.mkdtemp(prefix="quiesce-servers-"))
        self._servers: dict[str, LocalPostgres | LocalKafka] = {}
        self._starters: dict[str, threading.Thread] = {}

    def start(self, *parts: str) -> None:
        """Begin to start the parts side by side, those that can be had and are not given. Returns at once."""
        for part in parts:
            if part not in self._starters and part not in self.missing and not _given(part):
                self._servers[part] = LocalPostgres() if part == "postgres" else LocalKafka()
                self._starters[part] = threading.Thread(target=self._run, args=(part,), name=f"start {part}")
                self._starters[part].start()

    def wait(self) -> None:
        """Wait until what was begun has started or failed; `address` tells which."""
        for starter in self._starters.values():
            starter.join(_ANSWER_BOUND)

    def address(self, part: str) -> str:
        """As `SharedAddresses.address`; starts the part if nobody did."""
        self.start(part)
        return SharedAddresses(self.answers, self.missing).address(part)

    def stop_all(self) -> None:
        """Stop everything that runs. What is just starting is let start first: torn, it would leave its files."""
        self.wait()
        for server in self._servers.values():
            server.close()
        shutil.rmtree(self.answers, ignore_errors=True)

    def described(self) -> str:
        """One line: the servers of this run with their versions."""
        return ", ".join(_described(part, self.missing) for part in ADDRESS_VARIABLES)

    def _run(self, part: str) -> None:
        server = self._servers[part]
        told = {"error": "an unexpected error, whose traceback is in the output of the run"}
        try:
            server.start()
            told = {"address": server.dsn() if isinstance(server, LocalPostgres) else server.bootstrap}
        except StartError as error:
            told = {"error": str(error)}
        finally:
            fresh = self.answers / f"{part}.new"
            fresh.write_text(json.dumps(told))
            fresh.replace(self.answers / part)


def _given(part: str) -> str:
    return os.environ.get(ADDRESS_VARIABLES.get(part, ""), "")


def _missing_parts() -> dict[str, str]:
    available = {
        "postgres": LocalPostgres.available,
        "kafka": LocalKafka.available,
        "tansu": LocalTansu.available,
        "pgbouncer": _no_pgbouncer,
        "namespaces": _no_namespaces,
    }
    return {part: reason for part, ask in available.items() if not _given(part) and (reason := ask())}


def pgbouncer() -> str | None:
    """PgBouncer's program. Distributions put it where only root looks."""
    return shutil.which("pgbouncer", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/usr/local/sbin")


def _no_pgbouncer() -> str | None:
    return None if pgbouncer() else "PgBouncer is not installed: apt-get install pgbouncer, or your system's way."


def _no_namespaces() -> str | None:
    """Whether a process can be PID 1 of its own, or have a network of its own."""
    if shutil.which("unshare") is None:
        return "unshare(1) is not installed: it comes with util-linux, on Linux."
    command = ["unshare", "--pid", "--net", "--fork", "--mount-proc", "--kill-child", "true"]
    tried = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=10.0)
    return None if tried.returncode == 0 else f"Making one is refused here (root may): {tried.stderr.strip()}"


def _described(part: str, missing: Mapping[str, str]) -> str:
    if part in missing:
        return f"no {TITLES[part]}"
    given = _given(part)
    if not given:
        if part == "kafka":
            return f"{TITLES[part]} {LocalKafka().version} (started by the tests, Java {java_version()})"
        return f"{TITLES[part]} {LocalPostgres().version} (started by the tests)"
    if part == "kafka":  # its protocol does not tell the broker's version
        return f"{TITLES[part]} at {given} ({ADDRESS_VARIABLES[part]})"
    try:
        return f"{TITLES[part]} {PostgresAddress(given).server_version()} ({ADDRESS_VARIABLES[part]})"
    except StartError as error:
        return f"{TITLES[part]} of {ADDRESS_VARIABLES[part]} does not answer: {error}"
