"""S7 in time: a cancel at every turn of the loop, and at every offset, while a real transaction commits."""

import asyncio
import selectors
from collections.abc import Callable
from functools import partial
from typing import Any

import asyncpg
import pytest

from quiesce import critical


class CountedTurns(selectors.DefaultSelector):
    """The real selector. Between two turns of its loop it does what is due then: no timer decides when."""

    def __init__(self) -> None:
        super().__init__()
        self.turns = 0
        self.actions: dict[int, Callable[[], object]] = {}

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.turns += 1
        action = self.actions.pop(self.turns, None)
        if action is None:
            return super().select(timeout)
        action()
        return super().select(0)


class Sweep:
    """Charges again and again, and cancels the caller; counts the cancels that met an open section."""

    def __init__(self, database: str) -> None:
        self._database = database
        self.inside = 0
        self._open = False

    async def charge(self, number: int) -> None:
        """A whole transaction on a connection of its own, its COMMIT included."""
        self._open = True
        try:
            connection = await asyncpg.connect(self._database)
            try:
                async with connection.transaction():
                    await connection.execute("insert into charged values ($1)", number)
            finally:
                await connection.close()
        finally:
            self._open = False

    def cancel(self, caller: "asyncio.Task[None]", cause: str) -> None:
        self.inside += self._open
        caller.cancel(cause)

    async def rows(self) -> list[int]:
        connection = await asyncpg.connect(self._database)
        try:
            return [row["n"] for row in await connection.fetch("select n from charged order by n")]
        finally:
            await connection.close()

    async def prepare(self) -> None:
        connection = await asyncpg.connect(self._database)
        try:
            await connection.execute("create table charged (n int primary key)")
        finally:
            await connection.close()

    async def began(self) -> None:
        while not self._open:
            await asyncio.sleep(0)


@pytest.mark.parametrize("cancels", [1, 3])
def test_cancels_at_every_turn_of_the_loop_never_tear_a_commit(database: str, cancels: int) -> None:
    turning = CountedTurns()
    sweep = Sweep(database)

    async def main() -> int:
        await sweep.prepare()
        turn = 0
        while True:
            caller: asyncio.Task[Any] = asyncio.create_task(critical("charge", sweep.charge, turn))
            await sweep.began()
            for extra in range(cancels):
                turning.actions[turning.turns + 1 + turn + extra] = partial(sweep.cancel, caller, f"cancel {extra}")
            await asyncio.wait({caller}, timeout=10)
            assert caller.done()
            turning.actions.clear()
            if not caller.cancelled():
                # The first of them came behind its end.
                return turn
            with pytest.raises(asyncio.CancelledError, match="cancel 0"):
                caller.result()
            # By the time that the caller is gone the row is there: nobody needs to wait for it.
            assert await sweep.rows() == list(range(turn + 1))
            turn += 1

    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(turning)) as runner:
        turns = runner.run(main())
    assert turns > 8, "connecting, BEGIN, INSERT, COMMIT and closing turn the loop more than a few times"
    assert sweep.inside >= 8, "as often a cancel met it open"


async def test_a_cancel_at_every_offset_in_time_never_tears_a_commit(database: str) -> None:
    sweep = Sweep(database)
    await sweep.prepare()
    loop = asyncio.get_running_loop()
    began = loop.time()
    await critical("charge", sweep.charge, 0)
    takes = loop.time() - began
    offsets = 40
    cancelled = 0
    for n in range(1, offsets + 1):
        caller: asyncio.Task[Any] = asyncio.create_task(critical("charge", sweep.charge, n))
        await sweep.began()
        # To behind its end.
        handle = loop.call_later(1.2 * takes * (n - 1) / offsets, sweep.cancel, caller, "tick")
        await asyncio.wait({caller}, timeout=10)
        assert caller.done()
        handle.cancel()
        cancelled += caller.cancelled()
        assert n in await sweep.rows()
    # How many depends on the machine, which has other work as well; the first comes at once.
    assert sweep.inside >= 3
    assert cancelled >= sweep.inside, "each was delivered, at the end"
