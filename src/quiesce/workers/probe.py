"""Whether what the handlers need is there: asked where a failure tells nobody whose fault it was."""

import asyncio
from collections.abc import Awaitable, Callable

from quiesce.workers.starts import Starts

Ask = Callable[[], Awaitable[object]]
"""Returns where all that the handlers need is there; raises, or does not return, where it is not."""

PROBE_BOUND = 2.0
"""Seconds for an answer. What takes longer hangs."""

_CANCELS = 3
_CANCEL_BOUND = 0.1
"""Seconds for each cancel of one that hangs: of a statement, of its rollback, of giving the connection back."""


class Probes:
    """Those of one run of a consumer. `ask`: the user's; without it the database that counts the starts is asked."""

    def __init__(self, ask: Ask | None, starts: Starts) -> None:
        self._ask = ask
        self._starts = starts

    async def there(self) -> bool | None:
        """None: nobody knows. That starts are counted says nothing of what else a handler needs."""
        if self._ask is not None:
            return await _answers(self._ask)
        if self._starts.counted and not await _answers(self._starts.probe):
            return False
        return None


async def _answers(ask: Ask) -> bool:
    async def asking() -> None:
        await ask()

    # A task of its own: the driver of a server that hangs may keep its cancel for ever.
    task = asyncio.create_task(asking(), name="probes what a handler needs")
    try:
        await asyncio.wait({task}, timeout=PROBE_BOUND)
    finally:
        for _ in range(_CANCELS):
            if not task.done():
                task.cancel()
                await asyncio.wait({task}, timeout=_CANCEL_BOUND)
    return task.done() and not task.cancelled() and task.exception() is None
