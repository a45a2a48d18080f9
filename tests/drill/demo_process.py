"""`quiesce demo` as a user starts it: a process, its output, and what it leaves behind."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Self

from quiesce.testing.process_guard import children_of

BOUND = 55.0


def _take_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class DemoProcess:
    """Runs the demo with a temporary directory of its own, and knows every process it ever started."""

    def __init__(self, *flags: str, **environment: str) -> None:
        # Reachable for the user that PostgreSQL runs as, which pytest's own directories are not.
        self.directory = Path(tempfile.mkdtemp(prefix="demo-", dir="/tmp"))
        self.directory.chmod(0o755)
        temporary = self.directory / "tmp"
        temporary.mkdir()
        temporary.chmod(0o755)
        self.temporary = temporary
        self._output = self.directory / "output"
        self._errors = self.directory / "errors"
        clean = {name: value for name, value in os.environ.items() if not name.startswith("QUIESCE_")}
        with self._output.open("wb") as output, self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "quiesce", "demo", *flags],
                stdout=output,
                stderr=errors,
                env={**clean, "TMPDIR": str(temporary), "PYTHONUNBUFFERED": "1", **environment},
                start_new_session=True,
                # Whoever runs the tests in the background has SIGINT ignored, and so would the demo.
                preexec_fn=_take_interrupts,
            )
        self.pids: set[int] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(10)
        shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def output(self) -> str:
        return self._output.read_text()

    @property
    def errors(self) -> str:
        return self._errors.read_text()

    def signal(self, number: int = signal.SIGINT) -> None:
        self._look()
        self._process.send_signal(number)

    def wait_for(self, pattern: str, within: float = BOUND) -> None:
        """Waits until the output fits the regular expression."""
        until = time.monotonic() + within
        while not re.search(pattern, self.output):
            self._look()
            assert self._process.poll() is None, self.told()
            assert time.monotonic() < until, self.told()
            time.sleep(0.05)

    def wait(self, within: float = BOUND) -> int:
        until = time.monotonic() + within
        while self._process.poll() is None:
            self._look()
            assert time.monotonic() < until, self.told()
            time.sleep(0.05)
        return self._process.returncode

    def left_behind(self) -> list[str]:
        """Processes that still run and files that are still there. To be asked after the end."""
        assert self._process.poll() is not None
        processes = [f"process {pid}" for pid in sorted(self.pids) if _runs(pid)]
        return processes + [str(path) for path in self.temporary.iterdir()]

    def told(self) -> str:
        return f"{self.output}\n{self.errors}"

    def _look(self) -> None:
        if self._process.poll() is None:
            self.pids |= set(children_of(self._process.pid))


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
