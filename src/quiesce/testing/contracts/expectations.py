"""What several suites ask in the same words: of anything that is opened and closed, and of a call that has to fail."""

import time
from collections.abc import Awaitable
from typing import TypeVar

from quiesce.lifecycle.deadline import Deadline
from quiesce.lifecycle.phases import Part
from quiesce.lifecycle.ports import Resource

E = TypeVar("E", bound=Exception)


def within(seconds: float) -> Deadline:
    """The deadline that comes in so many seconds, on the clock that a service has by default."""
    return Deadline(time.monotonic() + seconds)


def is_a_resource_of(part: Part, resource: Resource[object]) -> None:
    """It has a name for the report, and is closed in this part of a shutdown.

    Raises:
        AssertionError: it has none, or is of another part.
    """
    assert resource.name, "it has no name"
    assert resource.part is part, f"it is of part {resource.part}, not {part}"


async def closes_twice(resource: Resource[object], bound: float) -> None:
    """Nobody has anything in hand, so it closes by itself, within `bound` seconds; and once more is no error.

    Raises:
        AssertionError: it had to be forced.
    """
    assert not (await resource.close(within(bound))).forced, "it was forced, and nobody held it"
    assert not (await resource.close(within(bound))).forced, "the second close was forced"


async def raised(kind: type[E], call: Awaitable[object], otherwise: str) -> E:
    """The error of this kind, which the call has to raise. Any other error is the caller's.

    Raises:
        AssertionError: it raised nothing; `otherwise` says what that means.
    """
    try:
        await call
    except kind as error:
        return error
    raise AssertionError(otherwise)
