"""What the local servers share: starting a process that cannot outlive us, watching it, ending it in time.

Everything here is synchronous and works by process id, never by name: other people's servers run on the same
machine. Durations are float seconds.
"""

import contextlib
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from quiesce.errors import StartError
from quiesce.testing.process_guard import children_of

_GUARD = Path(__file__).with_name("process_guard.py")
_GUARD_BOUND = 10.0
_POLL = 0.01
_LINES_TOLD = 6


@dataclass(frozen=True)
class Account:
    """The user a server runs as when we are root."""

    uid: int
    gid: int

    def may_enter(self, directory: Path) -> bool:
        """Whether this user can reach `directory`, judged by the modes of it and of everything above it."""
        try:
            return all(self._may_search(step) for step in (directory, *directory.parents))
        except OSError:
            return False

    def _may_search(self, step: Path) -> bool:
        facts = step.stat()
        if facts.st_uid == self.uid:
            return bool(facts.st_mode & 0o100)
        if facts.st_gid == self.gid:
            return bool(facts.st_mode & 0o010)
        return bool(facts.st_mode & 0o001)


class GuardedProcess:
    """A running server with all its children. Its guard ends them when this process is gone."""

    def __init__(self, guard: "subprocess.Popen[bytes]", pid: int, log: Path) -> None:
        self._guard = guard
        self._paused = False
        self.pid = pid
        self.log = log
        # When nobody holds this object any more, or at exit: closing the pipe makes the guard end everything.
        self._finalizer = weakref.finalize(self, _let_go, guard, os.getpid())

    @property
    def alive(self) -> bool:
        return self._guard.poll() is None

    def wait(self, timeout: float) -> int | None:
        """Wait until the server and everything it started are gone.

        Returns the server's status as a shell shows it (128+n for a signal), None when `timeout` seconds
        passed.
        """
        assert self._guard.stdout is not None
        if not self._guard.stdout.closed:
            # The guard's output ends with it. Popen.wait would look only twenty times a second.
            if not _readable(self._guard.stdout, timeout):
                return None
            status = self._guard.wait(_GUARD_BOUND)
            self._finalizer()
            return status
        return self._guard.returncode

    def signal(self, number: int) -> None:
        """Send `number` to the server's first process; nothing happens when it is gone."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def family(self) -> list[int]:
        """The server's first process, then everything it started (Linux; elsewhere only the first)."""
        if not self.alive:
            return []
        # Below the guard, not below the server: the guard adopts what the server's children leave behind.
        return [self.pid, *(pid for pid in children_of(self._guard.pid) if pid != self.pid)]

    def pause(self) -> None:
        """SIGSTOP to every process of the server. Connections stay open and nobody answers."""
        self.signal(signal.SIGSTOP)  # first the one that could start others
        self._signal_all(self.family()[1:], signal.SIGSTOP)
        self._paused = True

    def resume(self) -> None:
        """SIGCONT to every process of the server."""
        family = self.family()
        self._signal_all(family[1:] + family[:1], signal.SIGCONT)
        self._paused = False

    def end(self, number: int, timeout: float) -> int | None:
        """Send `number`, wait up to `timeout` seconds, then SIGKILL. Returns the status as `wait` does."""
        if self._paused:
            self.resume()  # a stopped process does not see a signal to end
        self.signal(number)
        status = self.wait(timeout)
        return status if status is not None else self.kill()

    def kill(self) -> int | None:
        """SIGKILL the server's first process and wait until nothing of the server is left."""
        self.signal(signal.SIGKILL)
        status = self.wait(_GUARD_BOUND)
        if status is None:
            self._finalizer()
        return status

    @staticmethod
    def _signal_all(pids: Sequence[int], number: int) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def _let_go(guard: "subprocess.Popen[bytes]", owner: int) -> None:
    assert guard.stdin is not None
    assert guard.stdout is not None
    guard.stdin.close()
    guard.stdout.close()
    if os.getpid() != owner:
        return  # a forked copy: the guard is not its child
    try:
        guard.wait(_GUARD_BOUND)
    except subprocess.TimeoutExpired:
        guard.kill()
        guard.wait(_GUARD_BOUND)


def _readable(pipe: IO[bytes], timeout: float) -> bool:
    """Whether it has something to read, or has ended, within `timeout` seconds."""
    # Not select.select: it takes no descriptor from 1024 on, and a process under load has those.
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        return bool(selector.select(max(timeout, 0)))


def spawn(
    command: Sequence[str],
    *,
    log: Path,
    directory: Path,
    environment: Mapping[str, str] | None = None,
    account: Account | None = None,
) -> GuardedProcess:
    """Start `command` in `directory` with its output appended to `log`.

    If this process vanishes, the server is killed and `directory` is deleted. The server has a session of its
    own, so Ctrl-C at the terminal reaches us and not it. Raises StartError when the program cannot be
    started.
    """
    uid, gid = (str(account.uid), str(account.gid)) if account else ("-", "-")
    guard_command = [sys.executable, "-I", "-S", str(_GUARD), uid, gid, str(log), str(directory), *command]
    try:
        guard = subprocess.Popen(
            guard_command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=directory,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
    except OSError as error:
        raise StartError(f"cannot start {command[0]}: {error.strerror}") from error
    assert guard.stdout is not None
    answer = guard.stdout.readline().split() if _readable(guard.stdout, _GUARD_BOUND) else []
    if answer[:1] != [b"started"]:
        _let_go(guard, os.getpid())
        reason = os.strerror(int(answer[1])) if len(answer) == 2 else "its guard did not answer"
        raise StartError(f"cannot start {command[0]}: {reason}")
    return GuardedProcess(guard, int(answer[1]), log)


def wait_until(ready: Callable[[], bool], process: GuardedProcess, what: str, timeout: float) -> None:
    """Poll `ready` until it is true. Raises StartError, with the log's end, when it ends or time is up."""
    until = time.monotonic() + timeout
    while not ready():
        if not process.alive:
            raise StartError(f"{what} ended while it was starting: {log_tail(process.log)}")
        if time.monotonic() >= until:
            process.kill()
            raise StartError(f"{what} was not ready after {timeout:g} s: {log_tail(process.log)}")
        time.sleep(_POLL)


def log_tail(log: Path) -> str:
    """The last lines of a log, as `told` shows them."""
    try:
        return told(log.read_text(errors="replace")) or f"it wrote nothing to {log}"
    except OSError as error:
        return f"its log {log} cannot be read: {error.strerror}"


def told(output: str) -> str:
    """The last lines of a program's output joined to one, with advice where the cause is a common one."""
    lines = [line.strip() for line in output.splitlines()]
    lines = [line for line in lines if line and not line.startswith(("at ", "... "))]  # Java's frames tell nobody
    advice = ""
    if "No space left on device" in output:
        advice = " (the disk is full: make room, or set TMPDIR to a directory on another disk)"
    return " / ".join(lines[-_LINES_TOLD:]) + advice


def fresh_directory(name: str, below: Path | None = None, account: Account | None = None) -> Path:
    """A new empty directory that `account` (or we) own. Raises StartError when there is no place for it.

    Without `below`, the first of TMPDIR, /tmp and /var/tmp that the account can reach.
    """
    places = [below] if below else [Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp")]  # noqa: S108 - mkdtemp is used below
    for place in places:
        if account is None or account.may_enter(place.absolute()):
            break
    else:
        raise StartError(
            f"the unprivileged user that the server runs as cannot enter {places[0]}: "
            "name a directory that every user may enter (mode 755 all the way up)"
        )
    try:
        made = Path(tempfile.mkdtemp(prefix=f"quiesce-{name}-", dir=place))
        if account:
            os.chown(made, account.uid, account.gid)
    except OSError as error:
        raise StartError(
            f"cannot make a directory below {place}: {error.strerror}. "
            "Set TMPDIR to a directory that can be written, on a disk with room"
        ) from error
    return made


def remove_directory(directory: Path, owner: int) -> None:
    """Delete a server's directory; a forked copy of the process that made it leaves it alone."""
    if os.getpid() == owner:
        shutil.rmtree(directory, ignore_errors=True)
