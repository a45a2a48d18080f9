"""A service as a real process: started, signalled, waited for, and read by its log."""

import json
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from quiesce.errors import StartError
from quiesce.testing.process import GuardedProcess, log_tail, spawn

POLL = 0.01
"""Seconds between two looks at the log."""

REPORT = re.compile(r"shutdown report (\{.*\})")


class ServiceProcess:
    """Runs `quiesce run MODULE:SERVICE` (or any command) and watches it.

    It cannot outlive this process, however this process ends. A context manager: leaving it kills what
    still runs. All waits are bounded; durations are float seconds.

    Args:
        target: `module:service`, or a whole command as a sequence.
        environment: added to this process's own.
        name: for messages.
    """

    def __init__(
        self, target: str | Sequence[str], *, environment: Mapping[str, str] | None = None, name: str = "service"
    ) -> None:
        if isinstance(target, str):
            # -P keeps the current directory off the path of the program itself, as the installed command does.
            self._command = [sys.executable, "-P", "-m", "quiesce", "run", target]
        else:
            self._command = list(target)
        self.environment = dict(environment or {})
        self._process: GuardedProcess | None = None
        self._status: int | None = None
        self.name = name
        self._directory = Path(tempfile.mkdtemp(prefix="quiesce-service-"))
        self.log = self._directory / "log"

    def start(self) -> Self:
        """Starts it and returns at once.

        Raises:
            StartError: the program cannot be started.
        """
        self._process = spawn(self._command, log=self.log, directory=self._directory, environment=self.environment)
        return self

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.discard()

    def discard(self) -> None:
        """Kills it if it still runs, and deletes its log."""
        if self._process is not None and self._status is None:
            self._status = self._process.kill()
        shutil.rmtree(self._directory, ignore_errors=True)

    def keep_log(self, kept: Path | None = None) -> Path | None:
        """Copies its log to where `discard` leaves it, by default into the directory for temporary files.

        Returns where it is; None where that fails.
        """
        kept = kept or self._directory.with_suffix(".log")
        try:
            shutil.copyfile(self.log, kept)
        except OSError:
            return None
        return kept

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.alive

    def signal(self, number: int = signal.SIGTERM) -> None:
        assert self._process is not None, "not started"
        self._process.signal(number)

    def kill(self) -> int | None:
        """SIGKILL, and waits until it is gone."""
        assert self._process is not None, "not started"
        self._status = self._process.kill()
        return self._status

    def wait(self, within: float) -> int:
        """Waits for its end and returns its status, 128+n for a signal.

        Raises:
            TimeoutError: it still runs after `within` seconds; the message has the end of its log.
        """
        assert self._process is not None, "not started"
        status = self._process.wait(within)
        if status is None:
            raise TimeoutError(f"{self.name} still runs after {within:g} s: {log_tail(self.log)}")
        self._status = status
        return status

    def text(self) -> str:
        """All it has written, to standard output and to standard error."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def find(self, pattern: str) -> re.Match[str] | None:
        """The first place in its output that fits the regular expression."""
        return re.search(pattern, self.text())

    def wait_for(self, pattern: str, within: float = 10.0) -> re.Match[str]:
        """Waits until its output fits the regular expression.

        Raises:
            StartError: it ended, or the time passed, without that; the message has the end of its log.
        """
        until = time.monotonic() + within
        while True:
            # Alive is asked first: what it wrote before its end must be read after that.
            alive = self.alive
            found = self.find(pattern)
            if found is not None:
                return found
            if not alive or time.monotonic() >= until:
                why = f"not after {within:g} s" if alive else "it ended before that"
                raise StartError(f"{self.name} never wrote {pattern!r} ({why}): {log_tail(self.log)}")
            time.sleep(POLL)

    def report(self) -> dict[str, Any] | None:
        """Its shutdown report, or None if it wrote none."""
        found = REPORT.findall(self.text())
        return None if not found else dict(json.loads(found[-1]))
