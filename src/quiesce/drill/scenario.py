"""What is done to a fleet, as a list of steps. Steps know nothing of load and audit, so they combine freely."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from quiesce.drill.fleet import Fleet
from quiesce.drill.replica import Replica
from quiesce.errors import StartError


@dataclass(frozen=True, slots=True)
class Step:
    """One thing done to a fleet. `after`: seconds from the scenario's begin before which it does not begin; a
    step always waits for the end of the one before."""

    title: str
    act: Callable[[Fleet], Awaitable[object]]
    after: float = 0.0


def rolling_update(replicas: int, *, after: float = 0.0) -> list[Step]:
    """Replaces every replica, the oldest first, one after the other."""
    return [Step(f"rolling update {number} of {replicas}", _replace_oldest, after) for number in range(1, replicas + 1)]


def sigkill(*, after: float = 0.0) -> list[Step]:
    """Kills the oldest replica with SIGKILL and starts another in its place."""
    return [Step("SIGKILL", _kill_oldest, after), Step("replacement of the killed one", _add)]


async def perform(steps: Sequence[Step], fleet: Fleet, at_step: Callable[[str], None]) -> None:
    """Performs the steps one after the other. `at_step` gets the title of each as it begins.

    Raises:
        StartError: a replica did not start.
    """
    began = time.monotonic()
    for step in steps:
        early = began + step.after - time.monotonic()
        if early > 0:
            at_step("steady load")
            await asyncio.sleep(early)
        at_step(step.title)
        await step.act(fleet)
    at_step("steady load")


async def _replace_oldest(fleet: Fleet) -> None:
    await fleet.replace(_oldest(fleet))


async def _kill_oldest(fleet: Fleet) -> None:
    await fleet.settle()
    await fleet.kill(_oldest(fleet))


async def _add(fleet: Fleet) -> None:
    await fleet.settle()
    await fleet.add()


def _oldest(fleet: Fleet) -> Replica:
    serving = [replica for replica in fleet.replicas if replica.state == "serving"]
    if not serving:
        raise StartError("no replica is left that serves")
    return serving[0]
