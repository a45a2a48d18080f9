"""Iterations, and the iterators behind `stop.every` and `stop.every_sync`."""

from random import random
from types import TracebackType
from typing import Protocol, Self

from quiesce.lifecycle.grid import Grid


class Token(Protocol):
    """What the iterators need of the stop token."""

    def time(self) -> float: ...

    def begin(self, what: str) -> "Iteration | None": ...

    def end(self, iteration: "Iteration", *, failed: bool) -> None: ...

    async def sleep(self, seconds: float) -> bool: ...

    def sleep_sync(self, seconds: float) -> bool: ...


class Iteration:
    """One iteration in hand. A context manager; leaving it by an exception counts it as failed."""

    __slots__ = ("_token", "began", "what")

    def __init__(self, token: "Token", what: str, began: float) -> None:
        self._token = token
        self.what = what
        self.began = began

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._token.end(self, failed=kind is not None and issubclass(kind, Exception))


class Every:
    """The iterator behind `stop.every`: one iteration a turn, on a fixed grid.

    A class and not an async generator: a generator left by `break` or an error is finalised at some
    later time, and its iteration would stay in hand until then.
    """

    def __init__(self, token: Token, seconds: float, jitter: float) -> None:
        self._token = token
        self._turns = _Turns(token, seconds, jitter)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> None:
        wait = self._turns.next_wait()
        if (wait is not None and not await self._token.sleep(wait)) or not self._turns.begin():
            raise StopAsyncIteration


class EverySync:
    """The same for threads."""

    def __init__(self, token: Token, seconds: float, jitter: float) -> None:
        self._token = token
        self._turns = _Turns(token, seconds, jitter)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> None:
        wait = self._turns.next_wait()
        if (wait is not None and not self._token.sleep_sync(wait)) or not self._turns.begin():
            raise StopIteration


class _Turns:
    """What both iterators do between two waits."""

    def __init__(self, token: Token, seconds: float, jitter: float) -> None:
        self._iteration: Iteration | None = None
        if seconds < 0:
            raise ValueError(f"stop.every: got {seconds}, takes seconds, 0 or more")
        self._token = token
        self._jitter = jitter
        self._grid = Grid(token.time(), seconds)
        self._last: int | None = None

    def next_wait(self) -> float | None:
        """Ends the iteration in hand. Seconds to the next one; None for the first, which comes at once."""
        if self._iteration is not None:
            self._token.end(self._iteration, failed=False)
            self._iteration = None
        now = self._token.time()
        if self._last is None:
            self._grid = Grid(now, self._grid.seconds)
            self._last = 0
            return None
        self._last = self._grid.next_index(self._last, now)
        return self._grid.instant(self._last) - now + self._jitter * random()  # noqa: S311 - spreads load only

    def begin(self) -> bool:
        self._iteration = self._token.begin("iteration")
        return self._iteration is not None

    def __del__(self) -> None:
        # A loop left by `break`: nobody comes back to end its iteration.
        if self._iteration is not None:
            self._token.end(self._iteration, failed=False)
