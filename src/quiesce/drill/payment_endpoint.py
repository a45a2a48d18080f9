"""Stands for somebody else's payment API: charges once per key, counts, and loses some of its answers."""

import json
import socket
import threading
from collections import defaultdict
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

_SOCKET_BOUND = 10.0


@dataclass(slots=True)
class Charges:
    """What it was asked, and what it did. Written by its threads."""

    asked: list[tuple[str, str]] = field(default_factory=list)
    """Order and key of every attempt."""
    made: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    """By key: the order that was charged, and the body that asked for it."""
    lost: int = 0
    """Charges whose first answer did not reach whoever asked."""

    def twice(self) -> list[str]:
        """Orders that were charged under more than one key."""
        keys: dict[str, set[str]] = defaultdict(set)
        for key, (order, _) in self.made.items():
            keys[order].add(key)
        return sorted(order for order, found in keys.items() if len(found) > 1)

    def charged(self) -> set[str]:
        return {order for order, _ in self.made.values()}


class PaymentEndpoint:
    """Listens on a loopback port of its own for as long as the block runs: `with PaymentEndpoint() as payments:`.

    Args:
        lose_every: the first answer of every so many charges is lost after the charge was made: the connection is cut.
            0 loses none.
    """

    def __init__(self, *, lose_every: int = 0) -> None:
        self._lose_every = lose_every
        self._lock = threading.Lock()
        self._server: ThreadingHTTPServer | None = None
        self.charges = Charges()

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.server_address[1]}/charges"

    def __enter__(self) -> Self:
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            timeout = _SOCKET_BOUND
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                endpoint._charge(self)

            def log_message(self, *_: Any) -> None:
                """Nothing: whoever asks looks at `charges`."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: Any) -> None:
                """A client that was killed in the middle of its request."""

        self._server = Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.1,), name="payment endpoint", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.shutdown()
        self._server.server_close()

    def _charge(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers.get("Content-Length", 0)))
        key = request.headers.get("Idempotency-Key", "")
        order = str(json.loads(body)["order"])
        charges = self.charges
        with self._lock:
            charges.asked.append((order, key))
            first = key not in charges.made
            if first and key:
                charges.made[key] = (order, body)
            lost = first and self._lose_every > 0 and len(charges.made) % self._lose_every == 0
            charges.lost += lost
            same = bool(key) and charges.made[key] == (order, body)
        if lost:
            request.close_connection = True
            request.connection.shutdown(socket.SHUT_RDWR)
            return
        answer = json.dumps({"charged": order} if same else {"error": "another request has this key, or none"}).encode()
        request.send_response((201 if first else 200) if same else 422)
        request.send_header("Content-Type", "application/json")
        request.send_header("Content-Length", str(len(answer)))
        request.end_headers()
        request.wfile.write(answer)
