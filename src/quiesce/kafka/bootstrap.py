"""The first answer of a broker to a new producer, and later ones: how long each is waited for."""

import asyncio
import time
from typing import Any

from quiesce.errors import Unavailable
from quiesce.kafka.blocking import in_thread
from quiesce.kafka.handle import Handle
from quiesce.lifecycle.deadline import Deadline

_LONGEST = 5.0
"""Seconds that a broker is waited for, at most."""
_FIRST = 2.0
"""Seconds that the first wait gives a broker that says nothing. Each one that failed doubles them, for a broker behind
slow TLS or a slow line."""
_AFTER_ERROR = 0.3
"""Of that, the part in which another broker, or another try, may still make up for a connection that failed."""
_MOST_FAILURES = 10
"""That are counted: the wait is at its longest long before."""


class Bootstrap:
    """The waits of one publisher, one at a time. `address`: that of the brokers, for people."""

    def __init__(self, address: object) -> None:
        self._address = address
        self._failed = 0

    async def wait(self, handle: Handle) -> None:
        """Until a broker has answered this producer.

        Raises:
            Unavailable: none did. The handle has been given up.
        """
        patience = min(_LONGEST, _FIRST * 2.0**self._failed)
        answered = False
        try:
            asked = in_thread("quiesce-kafka-probe", handle.probe(patience))
            either: set[asyncio.Future[Any]] = {asked, handle.failing}
            await asyncio.wait(either, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            if not asked.done():
                await asyncio.wait({asked}, timeout=patience * _AFTER_ERROR)
            answered = asked.done() and asked.result()
        finally:
            if not answered:
                await handle.give_up(time.monotonic())
        if not answered:
            self._failed = min(self._failed + 1, _MOST_FAILURES)
            why = handle.last_error or f"nothing was heard within {patience:g} s"
            raise Unavailable(f"no Kafka broker answers at {self._address}: {why}")
        self._failed = 0


async def answers(handle: Handle, deadline: Deadline) -> bool:
    """Whether a broker answers a producer before the deadline. It is asked anew each time."""
    remaining = deadline.remaining(time.monotonic())
    if not remaining:
        return False
    asked = in_thread("quiesce-kafka-probe", handle.probe(min(remaining, _LONGEST)))
    done, _ = await asyncio.wait({asked}, timeout=remaining)
    return bool(done) and asked.result()
