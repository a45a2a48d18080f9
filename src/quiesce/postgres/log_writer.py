"""Recording what became of claims: in their order, several in one statement, over a lost connection if need be."""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from quiesce.errors import Unavailable
from quiesce.lifecycle.crash_points import reach
from quiesce.postgres.log_claim import LogClaim
from quiesce.postgres.log_connections import LogConnections
from quiesce.postgres.log_lane import LaneLog
from quiesce.postgres.log_recorder import LogRecorder

_GRACE = 1.0


@dataclass(slots=True)
class _Waiting:
    claim: LogClaim
    done: "asyncio.Future[None]"
    passes_at: float
    """When it waits no longer for claims before it."""


class LogWriter:
    """Writes down settled claims. A task of its own does it, for as long as there is something to write: whoever
    waits for it may be cancelled, and the broker's acks are recorded all the same.

    A claim waits `patience` seconds for those before it in its lanes; then the cursor moves over them, and their
    events are set aside until their claim ends. When a write has failed for `bound` seconds, nobody knows what is
    recorded: all its lanes are lost, and `lost` is called with them.
    """

    def __init__(
        self,
        name: str,
        connections: LogConnections,
        *,
        bound: float,
        patience: float,
        lost: Callable[[Sequence[LaneLog]], None],
    ) -> None:
        self._name = name
        self._recorder = LogRecorder(name, connections, bound)
        self._patience = patience
        self._lost = lost
        self._waiting: list[_Waiting] = []
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.turn = asyncio.Lock()
        """Held while something is planned and written: who holds it sees memory and table agree."""

    def submit(self, claim: LogClaim) -> "asyncio.Future[None]":
        """Has the claim recorded in its turn. The future fails with `Unavailable` where it could not be."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        self._waiting.append(_Waiting(claim, done, time.monotonic() + self._patience))
        self._changed.set()
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._write_all(), name=f"{self._name}: records claims")
        return done

    def look(self) -> None:
        """A claim has ended, so that another's turn may have come."""
        self._changed.set()

    async def close(self, within: float) -> bool:
        """Waits until all is written, for so many seconds; then gives up. Whether all was."""
        if self._task is None or self._task.done():
            return True
        await asyncio.wait({self._task}, timeout=within)
        if self._task.done():
            return True
        self._task.cancel()
        await asyncio.wait({self._task}, timeout=_GRACE)
        return False

    async def _write_all(self) -> None:
        try:
            while self._waiting:
                self._changed.clear()
                now = time.monotonic()
                ready = sorted(
                    (one for one in self._waiting if self._ready(one, now)), key=lambda one: one.claim.number
                )
                if not ready:
                    passes_at = min(one.passes_at for one in self._waiting)
                    await self._idle(passes_at - now)
                    continue
                async with self.turn:
                    await self._write(ready)
        finally:
            waiting, self._waiting = self._waiting, []
            self._fail(waiting, Unavailable(f"{self._name}: closed before it was recorded"))

    async def _idle(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await self._changed.wait()
        except TimeoutError:
            return

    def _ready(self, waiting: _Waiting, now: float) -> bool:
        """Whether all before it in its lanes are settled or given back."""
        if now >= waiting.passes_at:
            return True
        for part in waiting.claim.parts:
            for earlier in part.log.chain:
                if earlier is part:
                    break
                if not earlier.released and earlier.claim.outcomes is None:
                    return False
        return True

    async def _write(self, ready: list[_Waiting]) -> None:
        self._waiting = [one for one in self._waiting if one not in ready]
        ready.sort(key=lambda one: one.claim.number)
        now = time.monotonic()
        logs = {id(log): log for one in ready for log in one.claim.logs.values() if not log.lost}
        for log in logs.values():
            log.writes += 1
        try:
            for one in ready:
                one.claim.plan(now)
            moved = await self._recorder.record(logs.values(), now, _oldest(ready))
        except Exception as error:  # noqa: BLE001 - told to everybody who waits for it
            self._lose(logs.values(), str(error))
            self._fail(ready, error)
            return
        except BaseException:
            self._lose(logs.values(), "it was cut off while it was recorded")
            self._fail(ready, Unavailable(f"{self._name}: cut off; whether the claim was recorded is unknown"))
            raise
        finally:
            for log in logs.values():
                log.writes -= 1
        refused = [log for log in logs.values() if log.lane not in moved]
        if refused:
            self._lose(refused, "another relay has taken it over")
        reach("outbox.settled")
        for one in ready:
            one.claim.end()
            if not one.done.done():
                one.done.set_result(None)

    def _lose(self, logs: Iterable[LaneLog], why: str) -> None:
        logs = [log for log in logs if not log.lost]
        for log in logs:
            log.lose(why)
        self._lost(logs)

    def _fail(self, waiting: Iterable[_Waiting], error: Exception) -> None:
        for one in waiting:
            one.claim.end()
            if not one.done.done():
                one.done.set_exception(error)
                # Often nobody waits any more.
                one.done.exception()


def _oldest(ready: Iterable[_Waiting]) -> LogClaim | None:
    """The claim with the first event of all, by position: one look-up a write tells how long events wait."""
    firsts = [(one.claim.first, one.claim.number, one.claim) for one in ready if one.claim.first is not None]
    return min(firsts)[2] if firsts else None
