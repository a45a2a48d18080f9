"""The small program between us and a server started for a test: it starts the server and outlives us.

Why a program of its own and not `PR_SET_PDEATHSIG` on the server alone: that signal fires when the *thread*
that started the server ends, it is cleared when the server changes its user, and it reaches only the server's
first process (PostgreSQL has a dozen). A guard that watches its parent has none of these gaps, and being a
single thread it can use the signal safely for its own death.

Run as `python -I -S process_guard.py UID GID LOG REMOVE PROGRAM ARGUMENT...`; `-` for UID and GID keeps the
user, and REMOVE is a directory to delete when the parent vanished, or empty. Standard input is a pipe that
the parent keeps open: its end means that the parent is gone. Standard output says `started PID` or `refused
ERRNO`, once. The guard ends when the server has ended and nothing that it started is left; its status is the
server's (128+n for a signal).

It imports only what starts in a few milliseconds, and nothing of ours.
"""

import contextlib
import os
import select
import signal
import sys
import time

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LOOK_AGAIN = 0.5
_KILL_BOUND = 5.0


def _prctl(option: int, value: int) -> None:
    if sys.platform.startswith("linux"):
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def children_of(pid: int) -> list[int]:
    """The processes that `pid` started, directly or not, as the kernel shows them now (Linux; else none)."""
    parents: dict[int, int] = {}
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc"):
            if name.isdigit():
                with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{name}/stat") as stat:
                    # The program's name stands in brackets and may hold anything: count from the last one.
                    state, parent = stat.read().rpartition(")")[2].split()[:2]
                    if state != "Z":
                        parents[int(name)] = int(parent)
    found = [pid]
    for known in found:
        found += [child for child, parent in parents.items() if parent == known]
    return found[1:]


def _start(uid: str, gid: str, log: str, command: list[str]) -> int:
    """Start the server; returns its process id. Raises OSError with the reason the kernel gave."""
    read_end, write_end = os.pipe()
    guard = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(output, 1)
            os.dup2(output, 2)
            # Python ignores these two, and a program started by it would inherit that.
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            if uid != "-":
                os.setgroups([])
                os.setgid(int(gid))
                os.setuid(int(uid))
            # After the change of user, which would clear it: the guard's own death ends the server too.
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != guard:
                os._exit(1)
            os.execvp(command[0], command)  # noqa: S606 - a list of arguments, and no shell is wanted
        except OSError as error:
            os.write(write_end, str(error.errno).encode())
        finally:
            os._exit(127)
    os.close(write_end)
    with open(read_end, "rb") as refusal:
        errno = refusal.read()
    if errno:
        os.waitpid(pid, 0)
        raise OSError(int(errno), os.strerror(int(errno)))
    return pid


def _kill_what_is_left() -> None:
    """SIGKILL everything below this process and reap it. Orphans come to us, since we adopt them."""
    until = time.monotonic() + _KILL_BOUND
    while time.monotonic() < until:
        for pid in children_of(os.getpid()):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        try:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                time.sleep(0.002)
        except ChildProcessError:
            return


def _watch(server: int, parent: int, wakeup: int) -> int | None:
    """Wait for the server's end and return its status, or None when the parent is gone first."""
    while True:
        with contextlib.suppress(ChildProcessError):
            while (reaped := os.waitpid(-1, os.WNOHANG))[0] != 0:
                if reaped[0] == server:
                    return os.waitstatus_to_exitcode(reaped[1])
        # A forked copy of the parent may hold the pipe open, so its end alone is not proof enough of life.
        if os.getppid() != parent:
            return None
        ready, _, _ = select.select([0, wakeup], [], [], _LOOK_AGAIN)
        if 0 in ready and not os.read(0, 512):
            return None
        if wakeup in ready:
            os.read(wakeup, 512)


def main() -> int:
    uid, gid, log, remove, *command = sys.argv[1:]
    parent = os.getppid()
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    try:
        server = _start(uid, gid, log, command)
    except OSError as error:
        os.write(1, f"refused {error.errno}\n".encode())
        return 127
    os.write(1, f"started {server}\n".encode())
    # Asked to end, the guard takes the server with it, as it does when the parent is gone.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    status: int | None = None
    try:
        status = _watch(server, parent, read_end)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _kill_what_is_left()
        if status is None and remove:
            import shutil

            shutil.rmtree(remove, ignore_errors=True)
    if status is None:
        return 137
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main())
