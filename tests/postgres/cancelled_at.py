"""Cancelling a coroutine at a chosen one of its awaits."""

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any


class CancelledAt:
    """Awaits a coroutine, and cancels the task when the coroutine waits for the `step`-th time (1 is the first)."""

    def __init__(self, coroutine: Coroutine[Any, Any, object], step: int) -> None:
        self._coroutine = coroutine
        self._step = step
        self.steps = 0

    def __await__(self) -> Generator[Any, None, object]:
        inner = self._coroutine.__await__()
        error: BaseException | None = None
        while True:
            try:
                waited = inner.send(None) if error is None else inner.throw(error)
            except StopIteration as end:
                return end.value
            self.steps += 1
            if self.steps == self._step:
                task = asyncio.current_task()
                assert task is not None
                # It is running, so the cancel reaches it at the very await that it is about to begin.
                task.cancel()
            error = None
            try:
                yield waited
            except BaseException as raised:  # noqa: BLE001 - handed on to the coroutine
                error = raised
