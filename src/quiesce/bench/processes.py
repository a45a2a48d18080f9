"""A measured process: started, heard, ended, with the time its end took and the CPU it used."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from quiesce.errors import StartError

BOUND = 20.0
"""Seconds for a start or an end. Far above what is measured; it only keeps a broken run from hanging."""


@dataclass(frozen=True, slots=True)
class End:
    """Seconds from the request (or the call of `over`) to the end, CPU seconds of its whole life, its status."""

    seconds: float
    cpu: float
    status: int


class Measured:
    """A context manager; leaving it kills what still runs.

    Args:
        command: what follows the interpreter.
        environment: added to this process's own.
        given: written to its standard input.
    """

    def __init__(
        self, command: Sequence[str], *, environment: Mapping[str, str] | None = None, given: str = ""
    ) -> None:
        self._command = [sys.executable, "-P", *command]
        self._environment = {**os.environ, **(environment or {})}
        self._given = given
        self._output = b""
        self._closed = False

    @classmethod
    def subject(cls, name: str, **environment: str) -> Self:
        command = ["-m", "quiesce", "run", f"quiesce.bench.subjects:{name}", "--log-level", "info"]
        return cls(command, environment=environment)

    @classmethod
    def module(cls, name: str, given: str) -> Self:
        return cls(["-m", name], given=given)

    @classmethod
    def bare(cls, modules: Sequence[str]) -> Self:
        return cls(["-m", "quiesce.bench.bare"], given=json.dumps(list(modules)))

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=self._environment,
        )
        assert self._process.stdin is not None
        self._process.stdin.write(self._given.encode())
        self._process.stdin.close()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.returncode is None:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def cpu(self) -> float:
        """CPU seconds that it has used until now, all of its threads together. Linux only."""
        with open(f"/proc/{self._process.pid}/stat", encoding="ascii", errors="replace") as file:
            # Behind the name, which may have blanks and brackets in it.
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def heard(self, event: str, bound: float = BOUND) -> dict[str, Any]:
        """Waits for the line of that event, `bound` seconds at most.

        Raises:
            StartError: it ended, or the time was over, before that.
        """
        until = time.monotonic() + bound
        while True:
            for line in self._output.splitlines(keepends=True):
                if line.startswith(b'{"event": "' + event.encode() + b'"') and line.endswith(b"\n"):
                    return dict(json.loads(line))
            if not self._read(until):
                raise StartError(f"a measured process never said {event!r}: {self._output[-400:].decode()!r}")

    def end(self, number: signal.Signals = signal.SIGTERM) -> End:
        """Sends the signal and waits for its end."""
        began = time.perf_counter()
        os.kill(self._process.pid, number)
        return self.over(began)

    def over(self, began: float | None = None) -> End:
        """Waits for its end, which it has asked for itself."""
        began = time.perf_counter() if began is None else began
        until = time.monotonic() + BOUND
        # Its end closes the pipe. Reading it also keeps a process that logs much from waiting for us.
        while self._read(until):
            pass
        if not self._closed:
            raise StartError(f"a measured process did not end: {self._output[-400:].decode()!r}")
        _, status, used = os.wait4(self._process.pid, 0)
        seconds = time.perf_counter() - began
        self._process.returncode = os.waitstatus_to_exitcode(status)
        return End(seconds, used.ru_utime + used.ru_stime, self._process.returncode)

    def _read(self, until: float) -> bool:
        """Whether there was more to read in time."""
        assert self._process.stdout is not None
        number = self._process.stdout.fileno()
        if self._closed or not select.select([number], [], [], max(until - time.monotonic(), 0.0))[0]:
            return False
        chunk = os.read(number, 65536)
        self._output += chunk
        self._closed = not chunk
        return not self._closed
