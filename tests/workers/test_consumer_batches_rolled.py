"""Consumers of batches as real processes on Apache Kafka, rolled under load."""

import asyncio
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from test_consumer_processes import PARTITIONS, roll_three, sql

from quiesce.testing.service_process import ServiceProcess
from quiesce_pytest import MakeTopic

HERE = Path(__file__).parent


@pytest.fixture
def orders(topic: MakeTopic) -> str:
    return topic("orders", partitions=PARTITIONS)


@pytest.fixture
def batching(kafka: str, orders: str, group: str, database: str) -> Iterator[Callable[[], ServiceProcess]]:
    asyncio.run(sql(database, 'CREATE TABLE effect (partition int, "offset" bigint, pid int)'))
    environment = {"BOOTSTRAP": kafka, "TOPIC": orders, "GROUP": group, "DSN": database, "PYTHONPATH": str(HERE)}
    processes: list[ServiceProcess] = []

    def begin() -> ServiceProcess:
        process = ServiceProcess("batching_services:batching", environment=environment)
        processes.append(process.start())
        return process

    yield begin
    for process in processes:
        process.discard()


@pytest.mark.timeout(180)  # six processes, three of them one after the other
def test_a_rolling_restart_of_three_consumers_of_batches_under_load_handles_everything_once(
    kafka: str, orders: str, database: str, batching: Callable[[], ServiceProcess]
) -> None:
    everyone = roll_three(batching, kafka, orders, database)
    assert any(re.search(r"batch of \d+", replica.text()) for replica in everyone), "they came one by one"
