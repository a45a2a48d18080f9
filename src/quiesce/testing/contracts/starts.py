"""The contract of `CountsStarts`."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from quiesce.inbox.ports import CountsStarts
from quiesce.inbox.record import Record


class StartsWorld(Protocol):
    """What a check needs of an adapter: processes that count into one store, and end."""

    async def process(self) -> CountsStarts:
        """A new one. It is dead as soon as the check makes no more calls to it."""
        ...

    async def stop(self, process: CountsStarts) -> None:
        """It ends as it should."""
        ...


Check = Callable[[StartsWorld], Awaitable[None]]


def records(*offsets: int, partition: int = 0) -> Sequence[Record]:
    return [Record("orders", partition, offset, b"k", b"v") for offset in offsets]


async def what_a_dead_process_had_in_hand_was_begun_before(world: StartsWorld) -> None:
    dead, alive = await world.process(), await world.process()
    both = [*records(5, 6), *records(2, partition=1)]
    assert await dead.began("c", both) == [0, 0, 0]
    assert await alive.began("c", [*both, *records(7)]) == [1, 1, 1, 0]
    assert await alive.began("c", records(9)) == [0]


async def nothing_is_noted_while_one_is_suspect(world: StartsWorld) -> None:
    dead, careful, alive = [await world.process() for _ in range(3)]
    await dead.began("c", records(5, 6))
    for _ in range(3):
        assert await careful.began("c", records(5, 6, 7)) == [1, 1, 0]
    assert await alive.began("c", records(5, 6, 7)) == [1, 1, 0], "looking at them counted as a start"


async def who_dies_alone_counts_on_and_its_neighbours_do_not(world: StartsWorld) -> None:
    await (await world.process()).began("c", records(4, 5, 6))
    for deaths in (1, 2, 3):
        process = await world.process()
        assert await process.began("c", records(5, 6)) == [deaths, 1]
        if deaths == 1:
            assert await process.began("c", records(4), alone=True) == [1]
            await process.ended("c", records(4))
        assert await process.began("c", records(5), alone=True) == [deaths]
    last = await world.process()
    assert await last.began("c", records(5), alone=True) == [4]
    await last.ended("c", records(5))
    assert await last.began("c", records(6), alone=True) == [1]
    await last.ended("c", records(6))
    assert await last.began("c", records(4, 5, 6)) == [0, 0, 0], "what ended still counts"


async def an_end_is_no_death(world: StartsWorld) -> None:
    process, after = await world.process(), await world.process()
    await process.began("c", records(1, 2))
    await process.ended("c", records(2))
    await process.ended("c", records(1))
    assert await after.began("c", records(1, 2)) == [0, 0]


async def a_stop_is_no_death(world: StartsWorld) -> None:
    process, after = await world.process(), await world.process()
    await process.began("c", records(1, 2))
    await world.stop(process)
    assert await after.began("c", records(1, 2)) == [0, 0]


async def a_process_that_was_only_slow_takes_its_death_back(world: StartsWorld) -> None:
    slow, new = await world.process(), await world.process()
    await slow.began("c", records(4))
    assert await new.began("c", records(4)) == [1]
    await slow.ended("c", records(4))
    assert await new.began("c", records(4), alone=True) == [0]


async def consumers_count_apart(world: StartsWorld) -> None:
    dead, alive = await world.process(), await world.process()
    await dead.began("c", records(1))
    assert await alive.began("another", records(1)) == [0]
    assert await alive.began("c", records(1)) == [1]


async def nothing_is_nothing(world: StartsWorld) -> None:
    process = await world.process()
    assert list(await process.began("c", ())) == []
    await process.ended("c", ())
    await process.ended("c", records(1))


CHECKS: tuple[Check, ...] = (
    what_a_dead_process_had_in_hand_was_begun_before,
    nothing_is_noted_while_one_is_suspect,
    who_dies_alone_counts_on_and_its_neighbours_do_not,
    an_end_is_no_death,
    a_stop_is_no_death,
    a_process_that_was_only_slow_takes_its_death_back,
    consumers_count_apart,
    nothing_is_nothing,
)
