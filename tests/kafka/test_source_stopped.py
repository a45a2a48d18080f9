"""K12: a process that is stopped (SIGSTOP) for longer than its session, in the middle of a rebalance."""

import asyncio
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from broker import append, committed

from quiesce.inbox.record import TopicPartition
from quiesce.kafka import KafkaSource
from quiesce.testing.contracts.source import handle, numbered, within
from quiesce_pytest import MakeTopic

BOUND = 40.0
SESSION = 1500
MEMBER = Path(__file__).parent / "stopped_member.py"


@pytest.fixture
async def member(kafka: str, topic: MakeTopic, group: str) -> AsyncIterator[tuple[Process, str]]:
    name = topic(partitions=2)
    for partition in (0, 1):
        await asyncio.to_thread(append, kafka, name, numbered(10), partition)
    arguments = (str(MEMBER), kafka, name, group, str(SESSION), "20")
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdin=PIPE, stdout=PIPE)
    yield process, name
    if process.returncode is None:
        process.kill()
    await process.wait()


async def says(process: Process) -> str:
    assert process.stdout is not None
    async with asyncio.timeout(BOUND):
        return (await process.stdout.readline()).decode().strip()


async def test_K12_a_member_stopped_in_the_middle_of_a_rebalance_commits_nothing_when_it_goes_on(
    kafka: str, group: str, member: tuple[Process, str]
) -> None:
    process, name = member
    assert await says(process) == "holds"
    settings = {"session.timeout.ms": SESSION, "heartbeat.interval.ms": 100}
    other = await KafkaSource(kafka, name, group=group, settings=settings).open()
    assert await says(process) == "leaving"
    process.send_signal(signal.SIGSTOP)
    # The group does not wait for it longer than a session.
    everything = {TopicPartition(name, 0): 15, TopicPartition(name, 1): 15}
    async with asyncio.timeout(BOUND):
        while other.partitions != everything.keys():
            await asyncio.sleep(0.01)
    for partition in (0, 1):
        await asyncio.to_thread(append, kafka, name, numbered(5, 10), partition)
    await handle(other, 30)
    assert await asyncio.to_thread(committed, kafka, group, name, 2) == everything

    process.send_signal(signal.SIGCONT)
    assert process.stdin is not None
    process.stdin.write(b"\n")
    assert [await says(process) for _ in range(2)] == ["CommitRefused"] * 2
    assert "forced=False" in await says(process)
    async with asyncio.timeout(BOUND):
        assert await process.wait() == 0
    assert await asyncio.to_thread(committed, kafka, group, name, 2) == everything, "the group went back"
    await other.close(within(BOUND))
