"""Guests of the uvicorn CLI, gunicorn and hypercorn: real processes, real signals, real exit codes."""

import contextlib
import http.client
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from quiesce.testing.service_process import ServiceProcess

HERE = Path(__file__).parent

SERVERS = {
    "uvicorn": ["uvicorn", "--host", "127.0.0.1", "--port", "{port}", "{app}"],
    "gunicorn": ["gunicorn", "-k", "uvicorn_worker.UvicornWorker", "-b", "127.0.0.1:{port}", "{app}"],
    "hypercorn": ["hypercorn", "-b", "127.0.0.1:{port}", "{app}"],
}
# uvicorn raises the signal once more when it is done, whatever went before.
AFTER_SIGTERM = {"uvicorn": 128 + signal.SIGTERM, "gunicorn": 0, "hypercorn": 0}

EACH_SERVER = pytest.mark.parametrize("server", list(SERVERS))
HEARING_SERVER = pytest.mark.parametrize("server", ["uvicorn", "gunicorn"])

Guest = Callable[..., tuple[ServiceProcess, int]]

pytestmark = pytest.mark.serial


@pytest.fixture
def guest() -> Iterator[Guest]:
    """Starts an application of `guest_services.py` under a server; returns the process and its port."""
    processes: list[ServiceProcess] = []

    def begin(
        server: str, app: str, *, waits: str = "readiness: ready", **environment: str
    ) -> tuple[ServiceProcess, int]:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        command = [word.format(port=port, app=f"guest_services:{app}") for word in SERVERS[server]]
        process = ServiceProcess(
            [sys.executable, "-m", *command], environment={"PYTHONPATH": str(HERE), **environment}, name=server
        ).start()
        processes.append(process)
        process.wait_for(waits, within=20)
        if waits == "readiness: ready":
            until = time.monotonic() + 5
            while not listens(port):
                assert time.monotonic() < until, process.text()
                time.sleep(0.01)
        return process, port

    yield begin
    for process in processes:
        process.discard()


def listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def ask(port: int, path: str) -> tuple[int, str]:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=8)) as connection:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def stream(port: int, path: str) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port), timeout=8)
    client.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    return client


def in_order(text: str, *marks: str) -> None:
    places = [text.find(mark) for mark in marks]
    assert -1 not in places, f"missing: {[m for m, p in zip(marks, places, strict=True) if p < 0]} in\n{text}"
    assert places == sorted(places), text


def ended_well(process: ServiceProcess) -> None:
    """By its own account: the iteration was finished, then everything closed in order, and the report is clean."""
    text = process.text()
    assert text.count("iteration began") == text.count("iteration ended")
    in_order(text, "readiness: not ready", "closed producer", "closed pool", "shutdown report")
    report = process.report()
    assert report is not None
    assert report["exit_code"] == 0
    assert [resource["outcome"] for resource in report["resources"]] == ["clean", "clean"]


@EACH_SERVER
@pytest.mark.parametrize("app", ["served", "shop_app"])
def test_o25_sigterm_finishes_request_and_iteration_and_closes_in_order(guest: Guest, server: str, app: str) -> None:
    process, port = guest(server, app)
    with ThreadPoolExecutor() as pool:
        slow = pool.submit(ask, port, "/slow")
        process.wait_for("request began")
        process.signal()
        assert slow.result() == (200, '"ok"')
    assert process.wait(10) == AFTER_SIGTERM[server]
    ended_well(process)
    in_order(process.text(), "request answered with pool", "closed producer")


@EACH_SERVER
def test_o25_sigterm_during_a_blocking_call_is_not_lost(guest: Guest, server: str) -> None:
    process, port = guest(server, "served")
    with ThreadPoolExecutor() as pool:
        blocked = pool.submit(ask, port, "/block")
        process.wait_for("request blocks")
        process.signal()
        assert blocked.result()[0] == 200
    assert process.wait(10) == AFTER_SIGTERM[server]
    ended_well(process)


def test_o25_the_same_function_is_a_host_and_sigterm_during_a_blocking_call_is_not_lost(guest: Guest) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    environment = {"PYTHONPATH": str(HERE), "PORT": str(port)}
    for name in ("orders", "shop"):
        with ServiceProcess(f"guest_services:{name}", environment=environment, name=name) as process:
            process.wait_for("readiness: ready")
            with ThreadPoolExecutor() as pool:
                blocked = pool.submit(ask, port, "/block")
                process.wait_for("request blocks")
                process.signal()
                assert blocked.result() == (200, '"ok"')
            assert process.wait(5) == 0
            ended_well(process)


@EACH_SERVER
def test_the_application_has_health_endpoints_and_the_status_of_the_service(guest: Guest, server: str) -> None:
    process, port = guest(server, "served")
    assert ask(port, "/health/live")[0] == 200
    assert ask(port, "/health/ready") == (200, '{"status": "ready", "reason": "ready", "phase": "running"}')
    process.signal()
    assert process.wait(10) == AFTER_SIGTERM[server]


@HEARING_SERVER
@pytest.mark.parametrize("app", ["hearing", "shop_hearing_app"])
def test_s3_with_signals_heard_streams_are_told_and_the_server_gets_free(guest: Guest, server: str, app: str) -> None:
    process, port = guest(server, app)
    with stream(port, "/events?polite=1"):
        process.wait_for("stream began")
        began = time.monotonic()
        process.signal()
        assert process.wait(10) == AFTER_SIGTERM[server]
        assert time.monotonic() - began < 3
    ended_well(process)
    # The workers did not wait for the server: both drained at the same time.
    in_order(process.text(), "received signal SIGTERM", "readiness: not ready", "stream unwound", "closed producer")


@HEARING_SERVER
def test_s3_with_signals_heard_an_endless_stream_is_aborted_at_the_bound(guest: Guest, server: str) -> None:
    process, port = guest(server, "hearing")
    with stream(port, "/events"):
        process.wait_for("stream began")
        process.signal()
        assert process.wait(10) == AFTER_SIGTERM[server]
    report = process.report()
    assert report is not None
    assert report["abandoned"] == [{"worker": "http", "what": "GET /events", "count": 1}]
    in_order(process.text(), "stream unwound", "closed producer", "closed pool", "shutdown report")


def test_a_second_sigint_makes_uvicorn_skip_the_lifespan_and_resources_are_closed_all_the_same(guest: Guest) -> None:
    process, port = guest("uvicorn", "served")
    with stream(port, "/events"):
        process.wait_for("stream began")
        process.signal(signal.SIGINT)
        process.wait_for("Shutting down|Waiting for connections")
        process.signal(signal.SIGINT)
        assert process.wait(10) in (0, 1, 128 + signal.SIGINT)
    in_order(process.text(), "closed producer", "closed pool", "shutdown report")


@pytest.mark.parametrize("app", ["served", "shop_app"])
def test_a_second_sigint_ends_request_and_section_before_anything_is_closed(guest: Guest, app: str) -> None:
    """uvicorn ends its loop then: it cancels whatever runs there, all at once."""
    process, port = guest("uvicorn", app, PAYS="1")
    with stream(port, "/rolls-back"):
        process.wait_for("request began")
        process.signal(signal.SIGINT)
        process.wait_for("Shutting down|Waiting for connections")
        # In the middle of a section: of those that began one has not ended.
        process.wait_for("section began(?!(.|\n)*section ended)")
        process.signal(signal.SIGINT)
        assert process.wait(10) in (0, 1, 128 + signal.SIGINT)
    text = process.text()
    in_order(text, "readiness: not ready", "stop requested", "closed producer", "closed pool", "shutdown report")
    in_order(text, "request unwinds", "request rolled back with pool", "closed producer")
    assert text.rfind("section ended") < text.find("closed producer")
    assert text.count("paid a half") == 2 * text.count("section ended") == 2 * text.count("section began")
    report = process.report()
    assert report is not None
    assert [resource["outcome"] for resource in report["resources"]] == ["clean", "clean"]


@pytest.mark.parametrize(("server", "status"), [("uvicorn", 3), ("gunicorn", 3), ("hypercorn", 0)])
def test_a_start_that_fails_keeps_the_server_from_serving(guest: Guest, server: str, status: int) -> None:
    process, _ = guest(server, "served", waits="no such luck", FAILS="1")
    assert process.wait(10) == status
    assert "shutdown report" in process.text()


@pytest.mark.parametrize("server", ["uvicorn"])
def test_a_service_that_fails_takes_its_server_along(guest: Guest, server: str) -> None:
    process, _ = guest(server, "served", DIES="1")
    assert process.wait(10) == AFTER_SIGTERM[server]
    text = process.text()
    assert "so that the server ends" in text
    in_order(text, "worker dies failed", "closed producer", "closed pool", "shutdown report")
    report = process.report()
    assert report is not None
    assert report["exit_code"] == 1
