"""K23 with real processes: a record that kills its process is found and set aside, and nobody else is."""

import asyncio
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from broker import append, committed, records, wait_until

from quiesce.inbox.reason import KILLED_ITS_PROCESS
from quiesce.inbox.record import TopicPartition
from quiesce.inbox.retry_headers import REASON, tries
from quiesce.postgres import connect
from quiesce.testing.service_process import ServiceProcess
from quiesce_pytest import MakeTopic

HERE = Path(__file__).parent

Start = Callable[[], ServiceProcess]


@pytest.fixture
def dead(topic: MakeTopic) -> str:
    return topic("dead", partitions=1)


@pytest.fixture
def name(topic: MakeTopic) -> str:
    return topic("orders", partitions=2)


@pytest.fixture
def start(kafka: str, name: str, dead: str, group: str, database: str) -> Iterator[Start]:
    processes: list[ServiceProcess] = []
    environment = {"BOOTSTRAP": kafka, "TOPIC": name, "DEAD": dead, "GROUP": group, "DSN": database}

    def begin() -> ServiceProcess:
        process = ServiceProcess("counting_services:counted", environment={"PYTHONPATH": str(HERE), **environment})
        processes.append(process.start())
        return process

    yield begin
    for process in processes:
        process.discard()


async def noted(dsn: str) -> list[tuple[object, ...]]:
    async with connect(dsn) as connection:
        found = await connection.fetch(
            "SELECT first_offset, last_offset, suspect_first, suspect_last, deaths FROM record_start"
        )
        return sorted({tuple(row) for row in found}, key=str)


NOTHING = (None, None, None, None, "{}")


@pytest.mark.timeout(180)  # four processes, one after the other
def test_K23_a_record_that_kills_its_process_is_set_aside_after_three_deaths_and_its_neighbours_are_not(
    kafka: str, name: str, dead: str, group: str, database: str, start: Start
) -> None:
    append(kafka, name, [b"a0", b"a1", b"kill", b"a3", b"a4"], partition=0)
    append(kafka, name, [b"b0", b"b1", b"b2"], partition=1)
    dead_ones: list[ServiceProcess] = []
    while not _handles_all(process := start(), dead_ones):
        assert process.wait(10) == 128 + 9
        dead_ones.append(process)
        assert len(dead_ones) <= 3, process.text()
    assert len(dead_ones) == 3
    # What was handled before a death may have to be handled again.
    ends = {TopicPartition(name, 0): 5, TopicPartition(name, 1): 3}
    wait_until(lambda: committed(kafka, group, name, 2) == ends, "not all is committed", 30)
    wait_until(lambda: asyncio.run(noted(database)) == [NOTHING], "what was dealt with is still in hand", 20)
    process.signal()
    assert process.wait(30) == 0

    (letter,) = records(kafka, dead)
    assert (letter.value, letter.header(REASON), tries(letter)) == (b"kill", KILLED_ITS_PROCESS, 3)
    assert asyncio.run(noted(database)) == [NOTHING], "what was dealt with is still counted"


def _handles_all(process: ServiceProcess, before: Sequence[ServiceProcess]) -> bool:
    """Waits until this process is dead, or has handled what those before it had not."""
    text = "".join(one.text() for one in before)

    def all_handled() -> bool:
        found = set(re.findall(r"handled \d (\w+)", text + process.text()))
        return found == {"a0", "a1", "a3", "a4", "b0", "b1", "b2"}

    wait_until(lambda: not process.alive or all_handled(), "neither dead nor done", 40)
    return all_handled()


def test_K23_a_stop_in_the_middle_of_a_record_counts_nothing(
    kafka: str, name: str, dead: str, database: str, start: Start
) -> None:
    append(kafka, name, [b"a0", b"hang", b"a2"], partition=0)
    process = start()
    process.wait_for("begins 0 hang", 30)
    process.signal()
    assert process.wait(30) == 75
    assert asyncio.run(noted(database)) == [NOTHING]
    assert records(kafka, dead) == []
