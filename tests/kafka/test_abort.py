"""S1 on Apache Kafka: a handler that still runs when the drain ends is no outcome. Nobody commits its record."""

import asyncio
import contextlib
from typing import Any

import pytest
from broker import QUICK_GROUP, append, committed

from quiesce import Budget, Consumer, Service, running, service
from quiesce.inbox.record import Record, TopicPartition
from quiesce.kafka import KafkaSource
from quiesce_pytest import MakeTopic

BUDGET = Budget(grace_period=20, prestop=0, http=1, workers=1.5, producers=6, pools=1, report=0.5, margin=0.5)


async def until(condition: Any, within: float = 15.0) -> None:
    async with asyncio.timeout(within):
        while not condition():
            await asyncio.sleep(0.01)


def orders(kafka: str, topic: str, group: str, handler: Any) -> Any:
    @service("orders", budget=BUDGET)
    async def start(s: Service) -> None:
        source = KafkaSource(kafka, topic, group=group, revoke_bound=1.0, settings=QUICK_GROUP)
        s.run(Consumer(source, handler, name="orders"))

    return start


@pytest.mark.parametrize("how", ["hangs", "raises when it is cancelled"])
async def test_s1_the_record_in_hand_at_the_end_of_the_drain_is_not_committed_and_comes_again(
    kafka: str, topic: MakeTopic, group: str, how: str
) -> None:
    name = topic(partitions=1)
    await asyncio.to_thread(append, kafka, name, [b"first", b"second", b"third"])
    began: list[bytes | None] = []

    async def stuck_on_the_second(record: Record) -> None:
        began.append(record.value)
        if record.value == b"second":
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                if how == "raises when it is cancelled":
                    raise ZeroDivisionError("as a driver does whose connection is torn") from None
                raise

    async with running(orders(kafka, name, group, stuck_on_the_second)) as s:
        await until(lambda: len(began) == 2)
        report = await s.stop()
    assert began == [b"first", b"second"], "none is begun behind the stop"
    assert {worker.worker: worker.outcome for worker in report.workers} == {"orders": "aborted"}
    assert [a.worker for a in report.abandoned] == ["orders"]
    assert report.exit_code == 75
    # Asked of the broker, past us: the handled one may count, and the one in hand does not.
    partition = TopicPartition(name, 0)
    offset = (await asyncio.to_thread(committed, kafka, group, name, 1)).get(partition, 0)
    assert offset <= 1
    if how == "hangs":
        assert offset == 1
        assert [a.what for a in report.abandoned] == ["records of the batch in hand"]

    again: list[bytes | None] = []

    async def handles(record: Record) -> None:
        again.append(record.value)

    async with running(orders(kafka, name, group, handles)) as s:
        with contextlib.suppress(TimeoutError):
            await until(lambda: again[-1:] == [b"third"])
        report = await s.stop()
    assert again == [b"first", b"second", b"third"][offset:]
    assert report.exit_code == 0
    assert await asyncio.to_thread(committed, kafka, group, name, 1) == {partition: 3}
