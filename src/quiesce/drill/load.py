"""Orders from many clients on an open-loop schedule."""

import asyncio
import contextlib
import json
import time
import uuid

import aiohttp

from quiesce.drill.ledger import Ledger

CUSTOMERS = 100
_ANSWER_BOUND = 15.0
_ATTEMPTS = 5
_PAUSE = 0.2
"""Seconds before the second attempt, doubled with each."""

_MOST_IN_FLIGHT = 200
"""Each takes three descriptors of this process, client and both ends of the balancer; 1,024 is a common limit."""


class OrderLoad:
    """Places orders at a fixed rate, whether or not earlier ones have been answered.

    Each attempt has a connection of its own, so that the balancer chooses anew for each, and an id that the
    balancer can see. A request that has no good answer is sent again with the same Idempotency-Key and the same
    body, five times in all. At most 200 are in flight: where answers take so long, the next ones start late, and
    their latency counts from the instant they were due.

    Args:
        url: where `POST /orders` is answered.
        rate: orders a second.
    """

    def __init__(self, url: str, rate: float, ledger: Ledger) -> None:
        self._url = url
        self._rate = rate
        self._ledger = ledger
        self._room = asyncio.Semaphore(_MOST_IN_FLIGHT)
        self._requests: set[asyncio.Task[None]] = set()
        self._stopped = asyncio.Event()
        self._began = 0.0
        self.sent = 0

    @property
    def elapsed(self) -> float:
        """Seconds since the load began; 0 before that."""
        return time.monotonic() - self._began if self._began else 0.0

    @property
    def in_flight(self) -> int:
        return len(self._requests)

    async def run(self) -> None:
        """Sends until `stop`, then waits for what is in flight, each attempt at most 15 s."""
        timeout = aiohttp.ClientTimeout(total=_ANSWER_BOUND)
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        # No cookies: a jar that is asked for every request costs more than the request.
        cookies = aiohttp.DummyCookieJar()
        async with aiohttp.ClientSession(connector=connector, timeout=timeout, cookie_jar=cookies) as session:
            self._began = time.monotonic()
            try:
                while not self._stopped.is_set():
                    due = self._began + self.sent / self._rate
                    await self._wait_for(due)
                    if self._stopped.is_set():
                        break
                    await self._room.acquire()
                    if self._stopped.is_set():
                        break
                    self.sent += 1
                    request = asyncio.create_task(self._place(session, self.sent, due))
                    self._requests.add(request)
                    request.add_done_callback(self._answered)
                if self._requests:
                    await asyncio.wait(self._requests)
            finally:
                for request in self._requests:
                    request.cancel()

    def stop(self) -> None:
        """No further order is sent."""
        self._stopped.set()

    async def _wait_for(self, due: float) -> None:
        left = due - time.monotonic()
        if left > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._stopped.wait()

    def _answered(self, request: "asyncio.Task[None]") -> None:
        self._requests.discard(request)
        self._room.release()

    async def _place(self, session: aiohttp.ClientSession, number: int, due: float) -> None:
        # Made once: whatever becomes of an attempt, the next one is the same request.
        body = json.dumps({"customer": f"customer-{number % CUSTOMERS}", "total": number % 1000 / 10}).encode()
        key = str(uuid.uuid4())
        for attempt in range(1, _ATTEMPTS + 1):
            request = f"{number}" if attempt == 1 else f"{number}-{attempt}"
            headers = {
                "Content-Type": "application/json",
                "X-Request-Id": request,
                "Idempotency-Key": f'"{key}"',
            }
            if await self._attempt(session, request, headers, body, due):
                return
            if attempt < _ATTEMPTS:
                await asyncio.sleep(_PAUSE * 2 ** (attempt - 1))
        self._ledger.give_up()

    async def _attempt(
        self, session: aiohttp.ClientSession, request: str, headers: dict[str, str], body: bytes, due: float
    ) -> bool:
        """Whether it has its answer."""
        try:
            async with session.post(self._url, data=body, headers=headers) as response:
                text = await response.text()
                if response.status != 201:
                    return self._fail(request, f"{response.status} {text[:80]}")
                placed = json.loads(text)["id"]
                self._ledger.replayed += "Idempotency-Replayed" in response.headers
        except TimeoutError:
            return self._fail(request, f"no answer within {_ANSWER_BOUND:g} s")
        except (aiohttp.ClientError, OSError) as error:
            return self._fail(request, str(error) or type(error).__name__)
        except (ValueError, KeyError, TypeError):
            return self._fail(request, "201 without the id of an order")
        now = time.monotonic()
        self._ledger.accept(str(placed), now - self._began, now - due)
        return True

    def _fail(self, request: str, detail: str) -> bool:
        self._ledger.fail(request, self.elapsed, detail)
        return False
