"""An event loop whose clock jumps: an hour of waiting passes in no time, and two things can be made to
happen at the very same instant.

Only timers are virtual. Threads, sockets and child processes run in real time, so a test that uses them
must not use this loop.
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

T = TypeVar("T")

DEADLOCK_AFTER = 5.0
"""Real seconds that a loop may wait with no timer set before it is called a deadlock."""


class TasksLeaked(AssertionError):
    """The coroutine under test ended and left tasks behind. The message names them."""


class Deadlock(AssertionError):
    """Every task waits, no timer is set, and nothing came from outside."""


class _JumpingSelector(selectors.BaseSelector):
    """Polls the real selector; where it would have to wait, it moves the clock instead."""

    def __init__(self) -> None:
        self._real = selectors.DefaultSelector()
        self.now = 0.0
        self.turns = 0
        self.actions: dict[int, Callable[[], object]] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._real.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.modify(fileobj, events, data)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._real.get_map()

    def close(self) -> None:
        self._real.close()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.turns += 1
        action = self.actions.pop(self.turns, None)
        if action is not None:
            # What it sets off belongs to this instant: the clock stays.
            action()
            return self._real.select(0)
        if timeout is None:
            ready = self._real.select(DEADLOCK_AFTER)
            if not ready:
                raise Deadlock("every task waits and no timer is set")
            return ready
        ready = self._real.select(0)
        if not ready and timeout > 0:
            self.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """`loop.time()` starts at zero and jumps to the next timer whenever nothing else is to be done."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now

    @property
    def turns(self) -> int:
        """How often the loop has turned: at least once for each time a task was resumed after a wait."""
        return self._jumping.turns

    def at_turn(self, turn: int, action: Callable[[], object]) -> None:
        """Calls `action` between two turns of the loop.

        A test that does so for every turn of a run has interrupted it at every await there is.
        """
        self._jumping.actions[turn] = action


def run(main: Coroutine[Any, Any, T]) -> T:
    """Runs the coroutine on a loop of virtual time and returns its result.

    Raises:
        TasksLeaked: it returned while tasks that it started were not done.
        Deadlock: nothing can happen any more.
    """

    async def watched() -> T:
        result = await main
        left = asyncio.all_tasks() - {asyncio.current_task()}
        if left:
            raise TasksLeaked(", ".join(sorted(f"{task.get_name()}: {task.get_coro()}" for task in left)))
        return result

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(watched())
