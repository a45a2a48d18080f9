"""One turn does all that was decided, whatever one of its acts raises."""

import asyncio

import pytest

from quiesce.lifecycle import commands as do
from quiesce.lifecycle import events as ev
from quiesce.lifecycle.budget import Budget
from quiesce.lifecycle.machine import Machine
from quiesce.supervisor.sections import Sections
from quiesce.supervisor.turns import Turns


@pytest.mark.parametrize("kind", [ValueError, SystemExit, KeyboardInterrupt, asyncio.CancelledError])
@pytest.mark.parametrize("broken", [do.BecomeNotReady, do.ArmHardDeadline, ev.StopRequested, do.MakeReport])
async def test_an_act_that_fails_keeps_no_other_from_being_done(kind: type[BaseException], broken: type) -> None:
    done: list[str] = []
    failed: list[str] = []
    machine = Machine(Budget())

    def perform(decision: do.Decision) -> None:
        done.append(type(decision).__name__)
        if isinstance(decision, broken):
            raise kind("it cannot be done")

    turns = Turns(machine, Sections(), perform, lambda what, error: failed.append(f"{what}: {error}"))
    machine.start_ended()
    turns.now()
    machine.stop(asyncio.get_running_loop().time(), "a test")
    turns.now()
    assert failed == [f"{broken.__name__}: it cannot be done"]
    expected = ["BecomeNotReady", "ArmHardDeadline", "StopRequested", "MakeReport"]
    assert [name for name in done if name in expected] == expected
    machine.reported()
    turns.now()
    assert done[-1] == "PhaseChanged"
