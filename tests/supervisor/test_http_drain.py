"""The drain of the HTTP server: who is answered, who is told, who is cut."""

import asyncio
import os
import resource
import socket
import ssl
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from http_scene import GET, Scene, answer, ask, connections, ended, scene, until
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from quiesce.lifecycle.events import RequestsInFlight
from quiesce.supervisor import http, http_connections, http_listener
from quiesce.supervisor.request_stop import STOP_KEY, stop_of

IMPLEMENTATIONS = pytest.mark.parametrize("implementation", ["h11", "httptools"])


def counts(served: Scene) -> list[int]:
    """The numbers of requests in flight that were told."""
    return [event.count for event in served.events if isinstance(event, RequestsInFlight)]


Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


@IMPLEMENTATIONS
async def test_s34_who_stands_in_the_listeners_queue_is_answered_and_not_reset(implementation: str) -> None:
    async with scene(implementation=implementation) as served:
        clients = [served.client() for _ in range(50)]
        for client in clients:
            client.sendall(GET)
        # No turn of the loop lies between: not one of them has been accepted yet.
        await served.drain()
        for client in clients:
            got = await answer(client)
            assert got.startswith(b"HTTP/1.1 200"), got
            assert b"connection: close" in got.lower()
            assert await ended(client)
            client.close()


@IMPLEMENTATIONS
async def test_s34_one_who_is_connected_and_sends_a_moment_later_is_answered(implementation: str) -> None:
    async with scene(implementation=implementation) as served:
        client = served.client()
        drain = asyncio.create_task(served.drain())
        await asyncio.sleep(0)
        got = await ask(client)
        assert got.startswith(b"HTTP/1.1 200")
        await drain
        client.close()


async def test_a_client_that_comes_after_the_listener_closed_is_refused() -> None:
    async with scene() as served:
        await served.drain()
        with pytest.raises(ConnectionRefusedError):
            served.client()


@pytest.mark.serial
@IMPLEMENTATIONS
async def test_idle_connections_are_closed_within_milliseconds(implementation: str) -> None:
    async with scene(implementation=implementation) as served:
        clients = [served.client() for _ in range(20)]
        for client in clients:
            assert b"connection: close" not in (await ask(client)).lower()
        assert await served.drain() < 0.05
        for client in clients:
            assert await ended(client)
            client.close()


@IMPLEMENTATIONS
async def test_in_the_lame_duck_window_an_idle_connection_gets_one_more_answer_with_close(implementation: str) -> None:
    async with scene(implementation=implementation) as served:
        client = served.client()
        await ask(client)
        served.stop()  # the window: readiness is gone, the listener is open
        fresh = served.client()
        for connection in (client, fresh):
            got = await ask(connection)
            assert got.startswith(b"HTTP/1.1 200")
            assert b"connection: close" in got.lower()
            assert await ended(connection)
            connection.close()


@IMPLEMENTATIONS
async def test_a_request_whose_bytes_wait_unread_in_the_kernel_is_answered(implementation: str) -> None:
    async with scene(implementation=implementation) as served:
        client = served.client()
        await ask(client)
        client.sendall(GET)
        await served.drain()
        assert (await answer(client)).startswith(b"HTTP/1.1 200")
        client.close()


async def test_a_connection_counts_as_idle_only_when_the_kernel_holds_nothing_of_it() -> None:
    async with scene() as served:
        client = served.client()
        await ask(client)
        [connection] = connections(served)
        client.sendall(GET)
        now = asyncio.get_running_loop().time()
        http_connections.tell_http(connection, now, now)  # no turn of the loop lies between
        assert not connection.transport.is_closing()
        assert (await answer(client)).startswith(b"HTTP/1.1 200")
        http_connections.tell_http(connection, now, now)
        assert connection.transport.is_closing()
        client.close()


@IMPLEMENTATIONS
async def test_a_request_whose_first_bytes_have_arrived_is_read_and_answered(implementation: str) -> None:
    async with scene(implementation=implementation) as served:
        client = served.client()
        await ask(client)
        client.sendall(GET[:9])
        await until(lambda: all(connection.quiesce_arrived for connection in connections(served)))
        drain = asyncio.create_task(served.drain())
        await until(lambda: served.gate.stop.reason is not None)
        got = await ask(client, GET[9:])
        assert got.startswith(b"HTTP/1.1 200")
        assert b"connection: close" in got.lower()
        await drain
        client.close()


async def test_a_request_that_never_gets_complete_does_not_hold_the_drain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connections, "HEAD", 0.2)
    async with scene() as served:
        client = served.client()
        await ask(client)
        client.sendall(GET[:9])
        assert 0.15 < await served.drain() < 1
        assert await ended(client)
        client.close()


@IMPLEMENTATIONS
async def test_requests_in_flight_are_finished_and_counted(implementation: str) -> None:
    go = asyncio.Event()

    async def waits(scope: Any, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
        await go.wait()
        await send({"type": "http.response.body", "body": b"done"})

    async with scene(waits, implementation) as served:
        client = served.client()
        client.sendall(GET.replace(b"/hello", b"/hello%0a2026-01-01%20ERROR"))
        await until(lambda: counts(served) == [1])
        [(name, age, task)] = served.server.in_flight()
        assert name == "GET /hello%0A2026-01-01%20ERROR", "a line of the log could be forged"
        assert age >= 0
        assert not task.done()
        drain = asyncio.create_task(served.drain())
        await until(lambda: served.gate.stop.reason is not None)
        assert not served.ended.is_set()
        go.set()
        assert (await answer(client)).endswith(b"done")
        assert await ended(client), "its headers were sent before the drain, so only the end could tell"
        assert await drain < 1
        await until(lambda: counts(served) == [1, 0])
        client.close()


async def test_a_stream_that_listens_to_its_token_ends_in_order() -> None:
    async def stream(scope: Any, receive: Receive, send: Send) -> None:
        stop = scope["state"][STOP_KEY]
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"9")]})
        while await stop.sleep(0.01):
            pass
        assert stop.requested
        assert 0 < stop.remaining() <= 5
        await send({"type": "http.response.body", "body": stop.reason.encode().ljust(9)})

    async with scene(stream) as served:
        client = served.client()
        client.sendall(GET)
        await until(lambda: bool(served.gate.in_flight))
        assert await served.drain() < 0.5
        assert (await answer(client)).endswith(b"a test   ")
        client.close()


@IMPLEMENTATIONS
async def test_s3_an_endless_stream_is_aborted_named_and_awaited(implementation: str) -> None:
    cleaned = []

    async def endless(scope: Any, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        try:
            while True:
                await send({"type": "http.response.body", "body": b"data: x\n\n", "more_body": True})
                await asyncio.sleep(0.005)
        finally:
            await asyncio.sleep(0.2)
            cleaned.append(served.ended.is_set())

    async with scene(endless, implementation) as served:
        client = served.client()
        client.sendall(b"GET /events?token=secret HTTP/1.1\r\nHost: x\r\n\r\n")
        await until(lambda: bool(served.gate.in_flight))
        drain = asyncio.create_task(served.drain(3.0))
        await until(lambda: served.gate.stop.reason is not None)
        assert served.server.abort() == ["GET /events"], "by method and path, without the query"
        assert await drain < 2
        assert cleaned == [False], "it was awaited: its clean-up was over before the drain was"
        client.close()


async def test_a_handler_that_ignores_its_cancel_is_waited_for_a_bounded_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(http, "UNWIND", 0.2)
    leave = asyncio.Event()

    async def deaf(scope: Any, receive: Receive, send: Send) -> None:
        while not leave.is_set():
            try:
                await leave.wait()
            except asyncio.CancelledError:
                continue

    async with scene(deaf) as served:
        client = served.client()
        client.sendall(GET)
        await until(lambda: bool(served.gate.in_flight))
        drain = asyncio.create_task(served.drain(3.0))
        await until(lambda: served.gate.stop.reason is not None)
        served.server.abort()
        assert await drain < 1
        assert "GET /hello did not end when it was cancelled" in caplog.text
        leave.set()
        await until(lambda: not served.gate.in_flight)
        client.close()


async def test_an_answer_that_its_client_does_not_read_does_not_hold_the_drain_past_its_bound() -> None:
    async def large(scope: Any, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x" * 50_000_000})

    async with scene(large) as served:
        client = served.client()
        client.sendall(GET)
        await until(lambda: counts(served) in ([1, 0], [0]))
        drain = asyncio.create_task(served.drain(5.0))
        await until(lambda: served.gate.stop.reason is not None)
        assert not served.ended.is_set()
        served.server.abort()
        assert await drain < 1
        client.close()


@pytest.mark.parametrize("implementation", ["websockets-sansio", "wsproto"])
@pytest.mark.parametrize("listens", [True, False], ids=["takes its token", "never took its token"])
async def test_a_websocket_is_told_by_its_token_or_else_closed_with_1012(implementation: str, listens: bool) -> None:
    seen: list[Any] = []

    async def talk(scope: Any, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        if listens:
            await stop_of(scope).wait()
            await send({"type": "websocket.close", "code": 1001})
        else:
            seen.append(await receive())

    async with scene(talk, ws=implementation) as served:
        async with connect(f"ws://127.0.0.1:{served.server.port}/live") as client:
            await until(lambda: bool(served.gate.in_flight))
            drain = asyncio.create_task(served.drain())
            with pytest.raises(ConnectionClosed) as closed:
                await client.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == (1001 if listens else 1012)
        assert await drain < 1
        assert listens or seen == [{"type": "websocket.disconnect", "code": 1012}]


async def test_a_websocket_that_took_its_token_and_stays_is_closed_before_the_bound_and_then_aborted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http, "LAST_CALL", 0.1)
    heard = asyncio.Event()
    ended_by: list[str] = []

    async def stays(scope: Any, receive: Receive, send: Send) -> None:
        stop = stop_of(scope)
        await receive()
        await send({"type": "websocket.accept"})
        try:
            await stop.wait()
            heard.set()
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended_by.append("abort")
            raise

    async with scene(stays) as served:
        async with connect(f"ws://127.0.0.1:{served.server.port}/live") as client:
            await until(lambda: bool(served.gate.in_flight))
            drain = asyncio.create_task(served.drain(0.6))
            await until(heard.is_set)
            with pytest.raises(ConnectionClosed) as closed:
                await client.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1012
        assert not ended_by
        assert served.server.abort() == ["WEBSOCKET /live"]
        assert await drain < 2
        assert ended_by == ["abort"]


async def test_outside_a_service_the_token_never_fires() -> None:
    stop = stop_of({"type": "http"})
    assert not stop.requested
    assert stop.reason is None
    assert stop.remaining() == float("inf")
    assert await stop.sleep(0)
    with pytest.raises(TypeError, match="takes a request"):
        stop_of(3)


async def test_without_a_file_descriptor_left_it_pauses_says_so_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(http_listener, "PAUSE", 0.05)
    async with scene() as served:
        with socket.socket() as client:
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            with open(os.devnull) as probe:  # for its number: the next one that is free
                free = probe.fileno()
            resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
            try:
                client.settimeout(5)
                client.connect(("127.0.0.1", served.server.port))
                await until(lambda: "cannot accept connections" in caplog.text)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            assert (await ask(client)).startswith(b"HTTP/1.1 200")
            assert caplog.text.count("cannot accept connections") < 10, "it does not spin"


async def test_with_tls_a_client_whose_handshake_is_under_way_is_answered(tmp_path: Path) -> None:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    named = ["-subj", "/CN=localhost", "-days", "2", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*made, *named], check=True, capture_output=True, timeout=20)
    context = ssl.create_default_context(cafile=str(certificate))
    context.check_hostname = False
    async with scene(ssl_certfile=str(certificate), ssl_keyfile=str(key)) as served:
        raw = served.client()
        drain = asyncio.create_task(served.drain())
        await until(lambda: served.gate.stop.reason is not None)
        client = await asyncio.to_thread(context.wrap_socket, raw, server_hostname="localhost")
        got = await ask(client)
        assert got.startswith(b"HTTP/1.1 200")
        assert b"connection: close" in got.lower()
        client.close()
        await drain
