"""Consumers as real processes on Apache Kafka: rolled under load, killed at each point, stuck."""

import asyncio
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from broker import NEW_PROTOCOL, QUICK_GROUP, append, committed, wait_until
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as KafkaPartition

from quiesce.kafka import KafkaSource
from quiesce.kafka.beyond_text import Where, read
from quiesce.lifecycle.deadline import Deadline
from quiesce.postgres import connect
from quiesce.testing.kafka import LocalKafka
from quiesce.testing.service_process import ServiceProcess
from quiesce.workers import points
from quiesce_pytest import MakeTopic

HERE = Path(__file__).parent

PARTITIONS = 6

Start = Callable[..., ServiceProcess]


@pytest.fixture
def name(topic: MakeTopic) -> str:
    return topic("orders", partitions=PARTITIONS)


@pytest.fixture
def start(kafka: str, name: str, group: str, database: str) -> Iterator[Start]:
    processes: list[ServiceProcess] = []
    environment = {"BOOTSTRAP": kafka, "TOPIC": name, "GROUP": group, "DSN": database, "PYTHONPATH": str(HERE)}
    asyncio.run(sql(database, 'CREATE TABLE effect (partition int, "offset" bigint, pid int)'))

    def begin(which: str, **more: str) -> ServiceProcess:
        process = ServiceProcess(f"consuming_services:{which}", environment={**environment, **more})
        processes.append(process.start())
        return process

    yield begin
    for process in processes:
        process.discard()


async def sql(dsn: str, statement: str) -> list[tuple[int, ...]]:
    async with connect(dsn) as connection:
        return [tuple(row) for row in await connection.fetch(statement)]


def effects(dsn: str) -> Counter[tuple[int, int]]:
    """How often each record was handled."""
    found = asyncio.run(sql(dsn, 'SELECT partition, "offset" FROM effect'))
    return Counter((partition, offset) for partition, offset in found)


class Load:
    """Produces records with keys and event ids until it is told to stop. Knows how many the broker has.

    One in ten has the key `hot`, and these come in a row.
    """

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.acked = 0
        self._topic = topic
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0})
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)

    def produce(self, count: int) -> None:
        for n in range(self.acked, self.acked + count):
            key = b"hot" if n % 50 < 5 else b"k%d" % (n % 50)
            self._producer.produce(
                self._topic, b"v", key=key, headers={"id": f"event-{n}"}, on_delivery=self._delivered
            )
            self._producer.poll(0)
        assert self._producer.flush(30) == 0

    def _delivered(self, error: object, _: object) -> None:
        assert error is None
        self.acked += 1

    def _run(self) -> None:
        while not self._enough.wait(0.05):
            self.produce(10)

    def __enter__(self) -> "Load":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        self._thread.join(35)
        assert not self._thread.is_alive()


both_protocols = pytest.mark.parametrize("protocol", ["classic", "consumer"])


def roll_three(begin: Callable[[], ServiceProcess], bootstrap: str, topic: str, database: str) -> list[ServiceProcess]:
    """Three consumers, replaced one by one under load: everything is handled once. Returns all that ran."""
    with Load(bootstrap, topic) as load:
        replicas = [begin() for _ in range(3)]
        everyone = list(replicas)
        for replica in replicas:
            replica.wait_for("handles", 60)
        for _ in range(3):
            fresh = begin()
            everyone.append(fresh)
            fresh.wait_for("handles", 60)
            replicas.append(fresh)
            oldest = replicas.pop(0)
            oldest.signal()
            assert oldest.wait(40) == 0, oldest.text()
    wait_until(lambda: len(effects(database)) == load.acked, f"{load.acked} records are handled", 60)
    for replica in replicas:
        replica.signal()
    for replica in replicas:
        assert replica.wait(40) == 0, replica.text()
    seen = effects(database)
    assert len(seen) == load.acked > 100
    assert set(seen.values()) == {1}, f"twice: {[place for place, count in seen.items() if count > 1]}"
    return everyone


@pytest.mark.needs("kafka")
@pytest.mark.timeout(240)  # six processes, three of them one after the other
@both_protocols
def test_a_rolling_restart_of_three_consumers_under_load_with_a_hot_key_handles_everything_once(
    protocol: str, kafka: str, own_kafka: Callable[..., LocalKafka], name: str, database: str, start: Start
) -> None:
    # Sessions as long as they are by default: on a machine that is too busy a short one ends, and that is a crash.
    where = {"BOOTSTRAP": kafka, "PROTOCOL": protocol, "SESSION_MS": "45000"}
    if protocol == "consumer":
        broker = own_kafka(properties={"group.consumer.session.timeout.ms": "45000"})
        broker.create_topic(name, PARTITIONS)
        where["BOOTSTRAP"] = broker.bootstrap
    for replica in roll_three(lambda: start("plain", **where), where["BOOTSTRAP"], name, database):
        text = replica.text()
        assert "gave back" in text
        assert "was not done" not in text, "the bound of a revoke was not kept"
        assert "gone on without us" not in text


def told(bootstrap: str, group: str, topic: str) -> int:
    """How many records the group has been told to be done, those behind others that are not included."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    try:
        asked = [KafkaPartition(topic, number) for number in range(PARTITIONS)]
        found = consumer.committed(asked, timeout=15)
        cluster = consumer.cluster_id(timeout=15)
    finally:
        consumer.close()
    done = 0
    for one in found:
        beyond = read(one.metadata, one.offset, Where(cluster, group, topic, one.partition))
        done += max(0, one.offset) + (0 if beyond is None else len(beyond[0]))
    return done


@pytest.mark.timeout(120)
def test_after_a_kill_nothing_comes_again_that_was_done_behind_a_slow_record(
    kafka: str, name: str, group: str, database: str, start: Start
) -> None:
    load = Load(kafka, name)
    load.produce(300)
    # The first record is of the hot key and the first of its partition: it has no end, and thirty are of that key.
    process = start("plain", SESSION_MS="1500", SLOW="3600")
    wait_until(lambda: told(kafka, group, name) == len(effects(database)) == 270, "the group knows of all others", 60)
    process.kill()
    assert 0 in committed(kafka, group, name, PARTITIONS).values()
    process = start("plain", SESSION_MS="1500", SLOW="0.01")
    wait_until(lambda: len(effects(database)) == load.acked, "all are handled", 60)
    process.signal()
    assert process.wait(40) == 0, process.text()
    assert set(effects(database).values()) == {1}


@pytest.mark.timeout(180)  # five processes, one after the other, and the group waits for each that died
def test_K28_killed_at_each_point_between_handling_and_commit_each_effect_is_there_once(
    kafka: str, name: str, group: str, database: str, start: Start
) -> None:
    load = Load(kafka, name)
    load.produce(60)
    for point in points.ALL:
        process = start("with_inbox", SESSION_MS="1500", QUIESCE_CRASH=f"{point}:2:SIGKILL")
        assert process.wait(60) == 128 + 9, process.text()
        assert f"crash point {point} reached" in process.text()
        assert set(effects(database).values()) <= {1}
        load.produce(20)
    process = start("with_inbox", SESSION_MS="1500")
    wait_until(lambda: len(effects(database)) == load.acked, f"{load.acked} records are handled", 60)
    process.signal()
    assert process.wait(40) == 0, process.text()
    assert set(effects(database).values()) == {1}
    assert sum(committed(kafka, group, name, PARTITIONS).values()) == load.acked


@pytest.mark.timeout(120)
@both_protocols
async def test_K11_a_handler_that_does_not_end_after_its_partition_is_taken_away_ends_its_process(
    protocol: str, kafka: str, topic: MakeTopic, group: str, start: Start
) -> None:
    name = topic(partitions=2)
    process = start("stuck", TOPIC=name, PROTOCOL=protocol)
    for partition in (0, 1):
        await asyncio.to_thread(append, kafka, name, [b"v"], partition)
    # One of either partition: whichever of them goes is stuck.
    for partition in (0, 1):
        await asyncio.to_thread(process.wait_for, rf"begins \S+\[{partition}\]@0", 60)
    settings = QUICK_GROUP if protocol == "classic" else NEW_PROTOCOL
    other = await KafkaSource(kafka, name, group=group, settings=settings).open()
    status = await asyncio.to_thread(process.wait, 60)
    await other.close(Deadline(time.monotonic() + 10))
    assert status not in (0, 75)
    told = process.text().partition("has not ended")[0].splitlines()[-1]
    assert re.search(rf"{name}\[[01]\]@0 \(key none\)", told)


@pytest.mark.timeout(120)
async def test_K11_a_handler_that_blocks_the_loop_past_the_bound_ends_its_process_before_the_next_owner_begins(
    kafka: str, topic: MakeTopic, group: str, start: Start
) -> None:
    name = topic(partitions=1)
    process = start("blocking", TOPIC=name, SECONDS="3600")
    await asyncio.to_thread(append, kafka, name, [b"v"])
    await asyncio.to_thread(process.wait_for, rf"begins {name}\[0\]@0", 60)
    settings = {**QUICK_GROUP, "partition.assignment.strategy": "range"}
    other = await KafkaSource(kafka, name, group=group, settings=settings).open()
    status = await asyncio.to_thread(process.wait, 60)
    text = process.text()
    assert status == 1, text
    assert f"work on {name}[0] has not ended" in text
    assert "time.sleep" in text, "the stack says where"
    await other.close(Deadline(time.monotonic() + 10))
