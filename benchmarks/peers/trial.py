"""One service, one scenario: a real process, real signals, and what it said when."""

import contextlib
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

STARTS_WITHIN = 60.0
INTO_THE_WORK = 0.4
"""Seconds after the work began at which the first SIGTERM is sent."""
BETWEEN = 1.5
"""Seconds between two SIGTERMs: more than a debounce."""


LEFT_AFTER = 3.0
"""Seconds after the first process's end from which on one of its children counts as left behind."""


@dataclass(frozen=True)
class Scenario:
    key: str
    title: str
    stuck: str = ""
    work: float = 1.0
    signals: int = 1


SCENARIOS = (
    Scenario("one", "one SIGTERM"),
    Scenario("two", "two SIGTERMs", work=4.0, signals=2),
    Scenario("stuck_worker", "stuck worker", stuck="worker"),
    Scenario("stuck_closer", "stuck closer", stuck="closer"),
)


@dataclass(frozen=True)
class Verdict:
    """What came of it. `exit_code` is None if it had to be killed; a signal n shows as 128+n."""

    work: str
    resource: str
    in_order: bool
    exit_code: int | None
    seconds: float
    began_more: int
    left_children: bool
    answered: bool | None
    troubles: str = ""

    def words(self, bound: float) -> str:
        if self.troubles:
            return self.troubles
        said = [f"work {self.work}", self.resource]
        if not self.in_order:
            said.append("**closed before the work was over**")
        if self.answered is False and self.work == "finished":
            said.append("client cut off")
        if self.began_more:
            said.append(f"{self.began_more} more begun")
        if self.left_children:
            said.append("processes left behind")
        end = f"**still running after {bound:g} s**" if self.exit_code is None else f"exit {self.exit_code}"
        said.append(end if self.exit_code is None else f"{end}, {self.seconds:.1f} s")
        return "; ".join(said)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class Trial:
    """Runs it once. `bound`: seconds from the first signal to SIGKILL."""

    def __init__(
        self, command: Sequence[str], directory: Path, environment: Mapping[str, str], scenario: Scenario, bound: float
    ) -> None:
        self._scenario = scenario
        self._bound = bound
        self._facts: list[tuple[float, str, str]] = []
        self._output: list[str] = []
        self._answered: bool | None = None
        self._over = threading.Event()
        self._process = subprocess.Popen(
            command,
            cwd=directory,
            env={**os.environ, **environment, "PEER_STUCK": scenario.stuck, "PEER_WORK": str(scenario.work)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )

    def run(self, http_port: int | None) -> Verdict:
        reader = threading.Thread(target=self._read, daemon=True)
        reader.start()
        client = threading.Thread(target=self._ask, args=(http_port,), daemon=True)
        if http_port is not None:
            client.start()
        try:
            if not self._wait_for("began", STARTS_WITHIN):
                return self._failed()
            time.sleep(INTO_THE_WORK)
            verdict = self._stop()
        finally:
            self._over.set()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            reader.join(5.0)
        return verdict

    def _stop(self) -> Verdict:
        first = time.monotonic()
        code = None
        for number in range(self._scenario.signals):
            if number:
                code = self._end_by(first + BETWEEN * number)
            if self._process.poll() is None:
                # To the first process only, as an orchestrator does.
                os.kill(self._process.pid, signal.SIGTERM)
        code = self._end_by(first + self._bound)
        seconds = time.monotonic() - first
        left = code is not None and self._group_lives()
        time.sleep(0.1)  # the reader has what was written before the end; the client its answer
        return self._judge(first, code, seconds, left)

    def _judge(self, first: float, code: int | None, seconds: float, left: bool) -> Verdict:
        # Of a pool of processes, only the one with the work counts.
        worker = next(process for _, fact, process in self._facts if fact == "began")
        after = [fact for when, fact, process in self._facts if when >= first and process == worker]
        work = "finished" if "ended" in after else "torn" if "torn" in after else "**lost without a word**"
        if code is None and work.startswith("**lost"):
            work = "in hand"
        over = [after.index(fact) for fact in ("ended", "torn") if fact in after]
        closed = "closed" in after
        in_order = not closed or (bool(over) and min(over) < after.index("closed"))
        tried = "closing given up" if code is not None else "closing hangs"
        resource = "closed" if closed else tried if "closing" in after else "**not closed**"
        return Verdict(
            work,
            resource,
            in_order,
            None if code is None else code if code >= 0 else 128 - code,
            round(seconds, 2),
            after.count("began"),
            left,
            self._answered,
        )

    def _failed(self) -> Verdict:
        tail = " / ".join(self._output[-4:])[-300:]
        return Verdict("", "", True, None, 0.0, 0, False, None, troubles=f"did not start: {tail}")

    def _end_by(self, instant: float) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(max(instant - time.monotonic(), 0.0))
        return None

    def _group_lives(self) -> bool:
        """Whether others that it started still live some seconds after it."""
        until = time.monotonic() + LEFT_AFTER
        while time.monotonic() < until:
            try:
                os.killpg(self._process.pid, 0)
            except ProcessLookupError:
                return False
            time.sleep(0.02)
        return True

    def _said(self, fact: str) -> bool:
        return any(said == fact for _, said, _ in self._facts)

    def _wait_for(self, fact: str, within: float) -> bool:
        until = time.monotonic() + within
        while time.monotonic() < until and self._process.poll() is None:
            if self._said(fact):
                return True
            time.sleep(0.01)
        return False

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("FACT "):
                _, fact, process = line.split()
                self._facts.append((time.monotonic(), fact, process))
            else:
                self._output.append(line.strip())

    def _ask(self, port: int) -> None:
        """Sends requests until one is in hand; then waits for its answer."""
        while not self._over.is_set():
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0) as connection:
                connection.settimeout(self._bound + STARTS_WITHIN)
                connection.sendall(b"GET / HTTP/1.1\r\nHost: peer\r\n\r\n")
                answer = connection.recv(1024)
                if b" 503 " not in answer[:20] or self._said("began"):
                    self._answered = answer[:12] == b"HTTP/1.1 200"
                    return
            if self._said("began"):
                self._answered = False
                return
            time.sleep(0.05)
