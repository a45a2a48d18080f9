"""The contract of `SetsAside` and `Postpones`."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from quiesce.errors import IntakeClosed, Unavailable
from quiesce.inbox.ports import Postpones, SetsAside
from quiesce.inbox.reason import FAILED, Reason
from quiesce.inbox.record import Record
from quiesce.inbox.retry_headers import REASON, not_before, origin, tries, without_ours
from quiesce.lifecycle.phases import Part
from quiesce.testing.contracts.expectations import closes_twice, is_a_resource_of, raised, within

_BOUND = 20.0


class AsidesWorld(Protocol):
    """What a check needs of an adapter: both places, and a look into them."""

    async def dead_letters(self) -> SetsAside:
        """Open. The world closes it if the check does not."""
        ...

    async def retry_topic(self) -> Postpones:
        """Open. The world closes it if the check does not."""
        ...

    async def dead(self) -> Sequence[Record]:
        """Every record that was set aside."""
        ...

    async def postponed(self) -> Sequence[Record]:
        """Every record that was postponed."""
        ...

    async def silence(self) -> None:
        """From now on nobody answers."""
        ...

    async def speak(self) -> None:
        """They answer again."""
        ...


Check = Callable[[AsidesWorld], Awaitable[None]]

WHY = Reason(FAILED, "ValueError", "no such product", 2, "orders")
OWN = (("id", b"11"), ("empty", None), ("x", b"\xff"), ("x", b"2"))


def record(offset: int = 3, key: bytes | None = b"k", value: bytes | None = b"v") -> Record:
    return Record("orders", 2, offset, key, value, OWN, 1_700_000_000.0)


async def both_are_resources_of_part_producers(world: AsidesWorld) -> None:
    for one in (await world.dead_letters(), await world.retry_topic()):
        is_a_resource_of(Part.PRODUCERS, one)


async def a_dead_letter_is_the_record_and_says_why(world: AsidesWorld) -> None:
    letters = await world.dead_letters()
    sent = [record(1), record(2, None, b"\x00\xff"), record(3, b"\xff", None), record(4, b"", b"")]
    for one in sent:
        await letters.set_aside(one, WHY, within(_BOUND))
    found = {origin(one).offset: one for one in await world.dead()}
    assert len(found) == len(sent)
    for one in sent:
        there = found[one.offset]
        assert (there.key, there.value, without_ours(there.headers)) == (one.key, one.value, OWN)
        assert origin(there) == ("orders", 2, one.offset)
        assert (there.header(REASON), tries(there), not_before(there)) == (FAILED, 2, None)


async def a_postponed_record_is_the_record_and_says_when(world: AsidesWorld) -> None:
    topic = await world.retry_topic()
    await topic.postpone(record(), WHY, 1_900_000_000.25, within(_BOUND))
    (there,) = await world.postponed()
    assert (there.key, there.value, without_ours(there.headers)) == (b"k", b"v", OWN)
    assert (origin(there), tries(there)) == (("orders", 2, 3), 2)
    due = not_before(there)
    assert due is not None
    assert due > 1_700_000_000


async def each_pass_is_a_record_of_its_own_with_the_first_origin(world: AsidesWorld) -> None:
    topic, letters = await world.retry_topic(), await world.dead_letters()
    await topic.postpone(record(), WHY, 1.0, within(_BOUND))
    (once,) = await world.postponed()
    await topic.postpone(once, Reason(FAILED, "", "", 3, "orders"), 2.0, within(_BOUND))
    _, twice = sorted(await world.postponed(), key=lambda one: one.offset)
    await letters.set_aside(twice, Reason(FAILED, "", "", 4, "orders"), within(_BOUND))
    (dead,) = await world.dead()
    assert [tries(one) for one in (once, twice, dead)] == [2, 3, 4]
    assert {origin(one) for one in (once, twice, dead)} == {("orders", 2, 3)}
    assert len(once.headers) == len(twice.headers) == len(dead.headers) + 1


async def closed_is_closed(world: AsidesWorld) -> None:
    letters = await world.dead_letters()
    await closes_twice(letters, 5.0)
    await raised(IntakeClosed, letters.set_aside(record(), WHY, within(_BOUND)), "it took a record after its close")


async def in_silence_it_is_said_by_the_deadline_and_later_it_is_kept_once(world: AsidesWorld) -> None:
    letters = await world.dead_letters()
    await letters.set_aside(record(1), WHY, within(_BOUND))
    await world.silence()
    in_vain = letters.set_aside(record(2), WHY, within(0.5))
    await raised(Unavailable, in_vain, "it says that it is kept, and nobody answered")
    await world.speak()
    async with asyncio.timeout(_BOUND):
        while True:
            try:
                await letters.set_aside(record(2), WHY, within(5))
                break
            except Unavailable:
                await asyncio.sleep(0.05)
    assert sorted(origin(one).offset for one in await world.dead()) == [1, 2]


CHECKS: tuple[Check, ...] = (
    both_are_resources_of_part_producers,
    a_dead_letter_is_the_record_and_says_why,
    a_postponed_record_is_the_record_and_says_when,
    each_pass_is_a_record_of_its_own_with_the_first_origin,
    closed_is_closed,
)
"""They disturb nobody: a broker may be shared."""

SILENCE_CHECKS: tuple[Check, ...] = (in_silence_it_is_said_by_the_deadline_and_later_it_is_kept_once,)
"""They silence the broker."""
