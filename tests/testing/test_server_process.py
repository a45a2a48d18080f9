"""A process started for a test ends when it is told to, and never outlives the one that started it."""

import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import all_gone, first_line, until

from quiesce.errors import StartError
from quiesce.testing.loopback import answers, free_port
from quiesce.testing.process import GuardedProcess, spawn, told, wait_until

# A server with a child that has left its session and its parent, as PostgreSQL's children leave their group.
FAMILY = "(setsid sleep 600 &) ; echo up ; sleep 600"
STUBBORN = "trap '' TERM INT ; echo up ; while : ; do sleep 0.05 ; done"


@pytest.fixture
def shell(tmp_path: Path) -> Iterator["StartShell"]:
    start = StartShell(tmp_path)
    yield start
    for process in start.started:
        process.kill()


class StartShell:
    """Starts a shell script as a server and waits until it says `up`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.started: list[GuardedProcess] = []

    def __call__(self, script: str) -> GuardedProcess:
        log = self.directory / f"log-{len(self.started)}"
        process = spawn(["sh", "-c", script], log=log, directory=self.directory)
        self.started.append(process)
        wait_until(lambda: "up" in log.read_text(), process, "the shell", timeout=3.0)
        return process


def test_end_is_orderly_where_the_server_heeds_the_signal(shell: StartShell) -> None:
    process = shell("trap 'echo bye ; exit 7' TERM ; echo up ; while : ; do sleep 0.02 ; done")
    assert process.end(signal.SIGTERM, timeout=3.0) == 7
    assert "bye" in process.log.read_text()
    assert not process.alive


def test_a_stubborn_server_is_killed_when_the_bound_is_over(shell: StartShell) -> None:
    process = shell(STUBBORN)
    began = time.monotonic()
    assert process.end(signal.SIGTERM, timeout=0.3) == 128 + signal.SIGKILL
    assert 0.3 <= time.monotonic() - began < 2.0


@pytest.fixture
def many_open_files() -> Iterator[None]:
    """This process has so many files open that the next one gets a number beyond 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2000:
        pytest.skip(f"no more than {hard} files may be open here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2000), hard))
    with contextlib.ExitStack() as opened:
        while opened.enter_context(Path(os.devnull).open()).fileno() < 1100:
            pass
        yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_open_files")
def test_a_process_with_very_many_files_can_start_and_end_one(shell: StartShell) -> None:
    process = shell("trap 'exit 7' TERM ; echo up ; while : ; do sleep 0.02 ; done")
    assert process.wait(0) is None
    assert process.end(signal.SIGTERM, timeout=3.0) == 7


def test_nothing_that_the_server_started_is_left(shell: StartShell) -> None:
    process = shell(FAMILY)
    until(lambda: len(process.family()) == 3)
    family = process.family()
    process.kill()
    assert all_gone(family)


def test_a_paused_server_can_be_ended(shell: StartShell) -> None:
    process = shell("trap 'exit 0' TERM ; echo up ; while : ; do sleep 0.02 ; done")
    process.pause()
    assert process.end(signal.SIGTERM, timeout=3.0) == 0


def test_a_server_outlives_the_thread_that_started_it(shell: StartShell) -> None:
    starter = threading.Thread(target=shell, args=(FAMILY,))
    starter.start()
    starter.join(5.0)
    [process] = shell.started
    # The kernel would have sent a signal bound to the thread by the time that another process has come and gone.
    subprocess.run(["true"], check=True, timeout=5.0)
    assert process.wait(0.1) is None
    assert process.alive


def test_wait_tells_the_status_again_and_again(shell: StartShell) -> None:
    process = shell("echo up ; exit 5")
    assert process.wait(3.0) == 5
    assert process.wait(0.0) == 5
    process.signal(signal.SIGTERM)  # to nobody


@pytest.mark.parametrize("end", ["SIGKILL", "exit"])
def test_the_server_ends_with_the_process_that_started_it(tmp_path: Path, end: str) -> None:
    place = tmp_path / "place"
    place.mkdir()
    source = f"""
import sys, time
from pathlib import Path
from quiesce.testing.process import spawn
process = spawn(["sh", "-c", {FAMILY!r}], log=Path({str(tmp_path / "log")!r}), directory=Path({str(place)!r}))
while len(process.family()) < 3:
    time.sleep(0.01)
process.pause()
print(*process.family(), flush=True)
sys.stdin.read()
"""
    child = subprocess.Popen([sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with child:
        assert child.stdin is not None
        assert child.stdout is not None
        family = [int(pid) for pid in first_line(child.stdout).split()]
        assert len(family) == 3
        assert not all_gone(family)
        if end == "SIGKILL":
            child.kill()
        else:
            child.stdin.close()
        until(lambda: all_gone(family))
        until(lambda: end == "exit" or not place.exists())


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"cannot start /no/such/server: No such file or directory"):
        spawn(["/no/such/server"], log=tmp_path / "log", directory=tmp_path)


def test_a_server_that_ends_at_its_start_is_quoted(tmp_path: Path) -> None:
    process = spawn(["sh", "-c", "echo the reason ; exit 1"], log=tmp_path / "log", directory=tmp_path)
    with pytest.raises(StartError, match=r"the thing ended while it was starting: the reason"):
        wait_until(lambda: False, process, "the thing", timeout=3.0)


def test_a_server_that_is_never_ready_is_given_up_and_ended(shell: StartShell) -> None:
    process = shell(STUBBORN)
    with pytest.raises(StartError, match=r"the thing was not ready after 0.1 s: up"):
        wait_until(lambda: False, process, "the thing", timeout=0.1)
    assert not process.alive


def test_a_full_disk_comes_with_advice() -> None:
    assert told("FATAL: No space left on device\n\n").endswith(
        "(the disk is full: make room, or set TMPDIR to a directory on another disk)"
    )


def test_frames_of_java_are_left_out() -> None:
    assert told("java.net.BindException: in use\n\tat a.b.C(D.java:1)\n\t... 18 more\n") == (
        "java.net.BindException: in use"
    )


def test_a_free_port_is_none_that_an_outgoing_connection_may_get() -> None:
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    assert not any(first <= free_port() <= last for _ in range(20))


def test_anothers_server_on_the_port_is_not_ours(shell: StartShell) -> None:
    process = shell(STUBBORN)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert not answers(process.pid, listener.getsockname()[1])
