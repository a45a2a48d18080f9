"""HTTP in the shutdown of real processes."""

import contextlib
import http.client
import json
import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from process_scene import in_order, processes

from quiesce.testing.loopback import free_port
from quiesce.testing.service_process import ServiceProcess

Serve = Callable[..., tuple[ServiceProcess, int]]

pytestmark = pytest.mark.serial


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts a service of `http_services.py`, waits until it is ready; returns it and its port."""
    starting = processes("http_services")
    start = next(starting)

    def begin(name: str, **environment: str) -> tuple[ServiceProcess, int]:
        port = free_port()
        process = start(name, PORT=str(port), **environment)
        process.wait_for("readiness: ready")
        return process, port

    yield begin
    next(starting, None)


def ask(port: int, path: str) -> tuple[int, str, str]:
    """Status, body and the Connection header, on a connection of its own."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=5)) as connection:
        return on(connection, path)


def on(connection: http.client.HTTPConnection, path: str) -> tuple[int, str, str]:
    connection.request("GET", path)
    answer = connection.getresponse()
    return answer.status, answer.read().decode(), answer.headers.get("connection", "")


def test_s2_with_uvicorn_embedded_sigterm_runs_every_later_part_and_ends_with_0(serve: Serve) -> None:
    process, port = serve("streams", SLOW="0.4")
    with ThreadPoolExecutor() as pool:
        slow = pool.submit(ask, port, "/slow")
        process.wait_for("request began")
        process.signal()
        assert slow.result() == (200, "ok", "close")
    assert process.wait(5) == 0
    in_order(process.text(), "received signal SIGTERM", "closed producer", "closed pool", "shutdown report")


def test_s3_an_endless_stream_is_bounded_aborted_awaited_and_named_and_the_rest_still_runs(serve: Serve) -> None:
    process, port = serve("streams")
    endless = socket.create_connection(("127.0.0.1", port), timeout=5)
    polite = socket.create_connection(("127.0.0.1", port), timeout=5)
    for client, path in ((endless, b"/events"), (polite, b"/polite")):
        client.sendall(b"GET " + path + b"?key=secret HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"tick" in client.recv(65536) + client.recv(65536)
    began = time.monotonic()
    process.signal()
    process.wait_for("/polite unwound")
    told = time.monotonic() - began
    assert process.wait(5) == 75
    assert told < 0.8, "it was told, and did not wait for the bound"
    assert 1 <= time.monotonic() - began < 4
    text = process.text()
    in_order(text, "received signal", "/polite unwound", "/events unwound", "closed producer", "closed pool")
    report = process.report()
    assert report is not None
    assert report["abandoned"] == [{"worker": "http", "what": "GET /events", "count": 1}]
    assert "secret" not in text
    endless.close()
    polite.close()


def test_s3_a_second_signal_aborts_the_stream_and_skips_no_clean_up(serve: Serve) -> None:
    process, port = serve("lame_duck")
    with socket.create_connection(("127.0.0.1", port), timeout=5) as client:
        client.sendall(b"GET /events HTTP/1.1\r\nHost: x\r\n\r\n")
        assert client.recv(65536)
        process.signal(signal.SIGINT)
        until = time.monotonic() + 4
        while process.find("abort requested") is None:
            assert time.monotonic() < until, process.text()
            process.signal(signal.SIGINT)
            time.sleep(0.05)
        assert process.wait(5) == 75
    in_order(process.text(), "abort requested", "/events unwound", "closed producer", "closed pool", "shutdown report")


def test_s20_in_the_lame_duck_window_new_connections_are_answered_with_close_and_then_refused(serve: Serve) -> None:
    process, port = serve("lame_duck")
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=5)) as idle:
        assert on(idle, "/x") == (200, "ok", "")
        process.signal()
        process.wait_for("shutdown part lame_duck began")
        # Routers still send: what they open anew and what they have open is answered, for the last time.
        assert ask(port, "/x") == (200, "ok", "close")
        assert on(idle, "/x") == (200, "ok", "close")
        status, body, _ = ask(port, "/health/ready")
        assert status == 503
        assert json.loads(body) == {"status": "draining", "reason": "received SIGTERM", "phase": "draining"}
        assert ask(port, "/health/live")[0] == 200
        process.wait_for("shutdown part http began")
        assert process.wait(5) == 0
    with pytest.raises(ConnectionRefusedError):
        ask(port, "/x")
    report = process.report()
    assert report is not None
    assert report["parts"]["lame_duck"]["duration_seconds"] == pytest.approx(1.5, abs=0.2)
    assert report["parts"]["http"]["duration_seconds"] < 0.1, "nothing was left to drain"


def test_s21_readiness_can_stay_200_in_the_drain_and_says_why_in_its_body(serve: Serve) -> None:
    process, port = serve("mesh")
    process.signal()
    process.wait_for("shutdown part lame_duck began")
    status, body, connection = ask(port, "/health/ready")
    assert (status, connection) == (200, "close")
    assert json.loads(body) == {"status": "draining", "reason": "received SIGTERM", "phase": "draining"}
    assert process.wait(5) == 0


def test_s34_no_request_of_a_steady_stream_of_new_connections_is_reset(serve: Serve) -> None:
    process, port = serve("streams")
    answered: list[int] = []
    refused: list[int] = []

    def knock() -> str | None:
        """One request a connection until the door is closed; anything but an answer or a refusal is a loss."""
        while True:
            try:
                client = socket.create_connection(("127.0.0.1", port), timeout=5)
            except ConnectionRefusedError:
                refused.append(1)
                return None
            with client:
                try:
                    client.sendall(b"GET /x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                    got = client.recv(65536)
                except OSError as error:
                    return f"{type(error).__name__}: {error}"
                if not got.startswith(b"HTTP/1.1 200"):
                    return repr(got[:60])
                answered.append(1)

    with ThreadPoolExecutor(16) as pool:
        knocking = [pool.submit(knock) for _ in range(16)]
        until = time.monotonic() + 5
        while len(answered) < 300:
            assert time.monotonic() < until
            time.sleep(0.005)
        process.signal()
        assert [task.result() for task in knocking] == [None] * 16
    assert len(refused) == 16
    assert process.wait(5) == 0


def test_an_idle_keep_alive_connection_does_not_delay_the_end(serve: Serve) -> None:
    process, port = serve("streams", ITERATION="0")
    with socket.create_connection(("127.0.0.1", port), timeout=5) as idle:
        idle.sendall(b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n")
        assert idle.recv(65536)
        process.signal()
        assert process.wait(5) == 0
    report = process.report()
    assert report is not None
    assert report["parts"]["http"]["duration_seconds"] < 0.05
