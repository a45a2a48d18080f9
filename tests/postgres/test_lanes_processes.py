"""Owners that are killed, stopped, blocked or cut off, as real processes."""

import asyncio
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from lane_members import ALL, Join, Member, eventually, shared_out
from outbox_table import event, write

from quiesce.postgres.driver import Connection
from quiesce.testing.contracts.expectations import within
from quiesce.testing.service_process import ServiceProcess

PROGRAM = Path(__file__).with_name("lane_process.py")

Start = Callable[..., ServiceProcess]

BETWEEN_LOOKS = 1.0
"""Seconds between two looks for free lanes, at most, on a machine with much to do."""


@pytest.fixture
async def start(database: str) -> AsyncIterator[Start]:
    processes: list[ServiceProcess] = []

    def one(takeover_after: float = 30.0, **environment: str) -> ServiceProcess:
        command = [sys.executable, "-P", str(PROGRAM), database, str(takeover_after)]
        processes.append(ServiceProcess(command, environment=environment, name="member").start())
        return processes[-1]

    yield one
    for process in processes:
        process.discard()


async def owning(process: ServiceProcess, count: int) -> None:
    """Waits until the last word of the process is that it owns so many lanes."""

    def counted() -> bool:
        said = [line for line in process.text().splitlines() if " owns " in line]
        return bool(said) and said[-1].count(",") + 1 == count and "[]" not in said[-1]

    await eventually(counted, 10.0)


async def backlog(look: Connection) -> None:
    """Events in every lane."""
    await write(look, *(event(key=f"key {number}") for number in range(200)))
    assert await look.fetchval("SELECT count(DISTINCT lane) FROM outbox_event") == len(ALL)


async def both_own(process: ServiceProcess, peer: Member) -> None:
    await owning(process, 16)
    await peer.tend()
    await owning(process, 8)
    await eventually(lambda: len(peer.held) == 8)
    # They were handed over by one that lives.
    await waited(peer)
    peer.takeovers.clear()


async def waited(peer: Member) -> float:
    """Seconds that the lanes it took over last had waited: all eight that the other had. It is told of them right
    behind their being owned."""
    await eventually(lambda: sum(takeover.lanes for takeover in peer.takeovers) == 8)
    return max(takeover.seconds for takeover in peer.takeovers)


async def test_a_killed_processs_lanes_are_taken_at_once(start: Start, join: Join) -> None:
    process, peer = start(), join("peer")
    await both_own(process, peer)
    began = time.monotonic()
    await asyncio.to_thread(process.signal, signal.SIGKILL)
    await eventually(lambda: peer.held.keys() == ALL)
    took = time.monotonic() - began
    print(f"killed: {took:.3f} s, says {await waited(peer):.3f} s")
    # Seen with its owner a look before it was killed.
    assert 0 < await waited(peer) < took + BETWEEN_LOOKS


async def test_a_leaving_processs_lanes_are_taken_at_once(start: Start, join: Join) -> None:
    process, peer = start(), join("peer")
    await both_own(process, peer)
    began = time.monotonic()
    process.signal(signal.SIGTERM)
    await eventually(lambda: peer.held.keys() == ALL)
    took = time.monotonic() - began
    print(f"left: {took:.3f} s, says {await waited(peer):.3f} s")
    assert 0 < await waited(peer) < took + BETWEEN_LOOKS
    assert await asyncio.to_thread(process.wait, 5.0) == 0
    assert " lost " not in process.text()


async def test_three_processes_of_which_two_are_killed(start: Start, join: Join) -> None:
    processes = [start(), start()]
    peer = join("peer")
    await peer.tend()
    await eventually(lambda: len(peer.held) in (5, 6), 10.0)
    for process in processes:
        await eventually(lambda: bool(process.find(r" owns \[\d")), 10.0)  # noqa: B023 - awaited here
        await asyncio.to_thread(process.signal, signal.SIGKILL)
    await eventually(lambda: peer.held.keys() == ALL)


async def test_a_frozen_owner_with_a_backlog_is_ended_and_fenced(start: Start, join: Join, look: Connection) -> None:
    await backlog(look)
    process, peer = start(takeover_after=1.5), join("peer", takeover_after=1.5)
    await both_own(process, peer)
    process.signal(signal.SIGSTOP)
    began = time.monotonic()
    await eventually(lambda: peer.held.keys() == ALL, 10.0)
    took = time.monotonic() - began
    print(f"frozen: {took:.3f} s, says {await waited(peer):.3f} s")
    assert took > 1.0, "not before it had its time"
    # Its lanes have waited since it froze and not since it was ended.
    assert await waited(peer) >= 1.5
    process.signal(signal.SIGUSR2)
    process.signal(signal.SIGCONT)
    # It wakes up as an owner of old: its cursor update finds no row.
    await eventually(lambda: bool(process.find(" moved UPDATE 0")), 5.0)
    await eventually(lambda: bool(process.find(" lost 8")), 5.0)
    await owning(process, 8)
    await eventually(lambda: len(peer.held) == 8)
    assert peer.losses == []


async def test_a_frozen_owner_with_nothing_to_send_is_left_alone(start: Start, join: Join, look: Connection) -> None:
    process, peer = start(takeover_after=1.0), join("peer", takeover_after=1.0)
    await both_own(process, peer)
    process.signal(signal.SIGSTOP)
    await asyncio.sleep(3.0)  # three times what it would take
    assert len(peer.held) == 8
    await backlog(look)
    took = await eventually(lambda: peer.held.keys() == ALL, 10.0)
    print(f"frozen, once there was something to send: {took:.3f} s")
    process.signal(signal.SIGCONT)


async def test_lanes_of_one_that_leaves_have_not_waited_as_long_as_another_is_frozen(start: Start, join: Join) -> None:
    frozen, peer, leaves = start(), join("peer"), join("leaves")
    await owning(frozen, 16)
    await asyncio.gather(peer.tend(), leaves.tend())
    await eventually(lambda: len(peer.held) >= 5 and len(leaves.held) >= 5, 10.0)
    frozen.signal(signal.SIGSTOP)
    await eventually(lambda: peer._keeper is not None and peer._keeper._waits.silent_since is not None, 10.0)
    peer.takeovers.clear()
    began = time.monotonic()
    await leaves.close(within(2.0))
    await eventually(lambda: bool(peer.takeovers))
    assert max(takeover.seconds for takeover in peer.takeovers) < time.monotonic() - began + BETWEEN_LOOKS
    frozen.signal(signal.SIGCONT)


async def test_o17_a_blocked_loop_costs_no_lanes(start: Start, join: Join, look: Connection) -> None:
    await backlog(look)
    process, peer = start(BLOCK_FOR="4"), join("peer")
    await both_own(process, peer)
    process.signal(signal.SIGUSR1)
    end = time.monotonic() + 5.0
    while time.monotonic() < end:
        assert len(peer.held) == 8
        await asyncio.sleep(0.01)
    assert " lost " not in process.text()
    process.signal(signal.SIGUSR2)
    await eventually(lambda: bool(process.find(" moved UPDATE 1")), 5.0)
    await eventually(lambda: len(peer.held) == 8)


async def test_an_owner_that_does_not_claim_is_not_ended_for_it(start: Start, join: Join, look: Connection) -> None:
    """A relay that waits for its broker: it has a backlog and moves no cursor, but it is alive."""
    await backlog(look)
    process, peer = start(takeover_after=1.0, TEND="once"), join("peer", takeover_after=1.0)
    await both_own(process, peer)
    await asyncio.sleep(3.0)
    assert len(peer.held) == 8
    assert " lost " not in process.text()


async def test_a_frozen_member_without_lanes_keeps_none_from_the_others(start: Start, join: Join) -> None:
    old = join("old")
    old.reading = set(ALL)
    await old.tend()
    process = start()
    await eventually(lambda: len(old.wants_rid_of) == 8, 10.0)
    process.signal(signal.SIGSTOP)
    old.reading = set()
    await eventually(lambda: len(old.held) == 8)
    took = await eventually(lambda: old.held.keys() == ALL, 10.0)
    print(f"a frozen member without lanes: {took:.3f} s")
    process.signal(signal.SIGCONT)
    await owning(process, 8)
    assert old.losses == []


async def test_a_process_that_ends_without_a_word(start: Start, join: Join) -> None:
    """As after `os._exit`, or out of memory: the kernel closes its connections."""
    process, peer = start(), join("peer")
    await both_own(process, peer)
    assert await asyncio.to_thread(process.kill) is not None
    await eventually(lambda: peer.held.keys() == ALL)
    assert await peer.close(within(2.0)) == 0
    assert not shared_out([peer])
