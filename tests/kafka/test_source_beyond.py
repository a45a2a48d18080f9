"""What is done behind the group's offset, on Apache Kafka: who believes it, and what becomes of it."""

import asyncio
import random
from collections.abc import Callable

import pytest
from broker import NEW_PROTOCOL, QUICK_GROUP, append
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as KafkaPartition

from quiesce.inbox.beyond import Beyond
from quiesce.inbox.record import TopicPartition
from quiesce.kafka import KafkaSource
from quiesce.kafka.beyond_text import read, written
from quiesce.testing.contracts.source import hold, numbered, within
from quiesce.testing.kafka import LocalKafka
from quiesce_pytest import MakeTopic

BOUND = 30.0


def commit_by_hand(kafka: str, group: str, topic: str, offset: int, text: str) -> None:
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": group})
    try:
        consumer.commit(offsets=[KafkaPartition(topic, 0, offset, text)], asynchronous=False)
    finally:
        consumer.close()


def kept(kafka: str, group: str, topic: str) -> tuple[int, str]:
    """The group's offset, and the text beside it."""
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": group})
    try:
        (one,) = consumer.committed([KafkaPartition(topic, 0)], timeout=BOUND)
    finally:
        consumer.close()
    return one.offset, one.metadata or ""


def cluster_of(kafka: str) -> str:
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": "asks"})
    try:
        return consumer.cluster_id(timeout=BOUND)
    finally:
        consumer.close()


TEN = Beyond.all_but(2, 10, [2, 5])


@pytest.mark.parametrize(
    ("text", "believed"),
    [
        (lambda cluster: written(TEN, cluster, 0), True),
        # As from before an election in which a broker that lacked records became the leader: others have their numbers.
        (lambda cluster: written(TEN, cluster, None), False),
        # As a tool writes that copies a group from one cluster to another.
        (lambda cluster: written(TEN, "another cluster", 0), False),
        (lambda cluster: written(TEN.seen_from(3), cluster, 0), False),
        (lambda cluster: "deployed by carol", False),
    ],
    ids=["its own", "an older epoch", "another cluster", "another offset", "somebody else's note"],
)
async def test_a_text_beside_the_offset_is_believed_only_where_it_is_about_these_very_records(
    kafka: str, topic: MakeTopic, group: str, text: Callable[[str], str], believed: bool
) -> None:
    name = topic(partitions=1)
    await asyncio.to_thread(append, kafka, name, numbered(12))
    note = text(await asyncio.to_thread(cluster_of, kafka))
    await asyncio.to_thread(commit_by_hand, kafka, group, name, 2, note)
    source = await KafkaSource(kafka, name, group=group, settings=QUICK_GROUP).open()
    wanted = [2, 5, 10, 11] if believed else list(range(2, 12))
    held, number = await hold(source, len(wanted))
    assert [record.offset for record in held] == wanted
    # However it began, what is done in the end is committed.
    await source.commit({held[0].source: 12}, number, within(BOUND))
    source.done(number)
    await source.close(within(BOUND))
    assert await asyncio.to_thread(kept, kafka, group, name) == (12, "")


async def test_it_goes_over_to_the_next_owner_in_the_new_protocol_too_beside_records_that_come_meanwhile(
    kafka: str, topic: MakeTopic, group: str
) -> None:
    name = topic(partitions=1)
    await asyncio.to_thread(append, kafka, name, numbered(10))
    first = await KafkaSource(kafka, name, group=group, settings=NEW_PROTOCOL).open()
    held, number = await hold(first, 10)
    await first.commit(
        {held[0].source: 0}, number, within(BOUND), beyond={held[0].source: Beyond.all_but(0, 9, [0, 4])}
    )
    await first.close(within(BOUND))
    await asyncio.to_thread(append, kafka, name, numbered(5, 10))
    second = await KafkaSource(kafka, name, group=group, settings=NEW_PROTOCOL).open()
    held, number = await hold(second, 8)
    assert [record.offset for record in held] == [0, 4, 9, 10, 11, 12, 13, 14]
    await second.close(within(BOUND))


@pytest.mark.needs("kafka")
@pytest.mark.xdist_group("kafka with short notes")
async def test_a_leader_that_changes_unsettles_nothing_and_a_broker_that_keeps_little_text_costs_a_warning(
    group: str, caplog: pytest.LogCaptureFixture
) -> None:
    with LocalKafka(properties={"offset.metadata.max.bytes": "100"}) as broker:
        kafka, name = broker.bootstrap, "t"
        broker.create_topic(name, partitions=1)
        here = TopicPartition(name, 0)
        await asyncio.to_thread(append, kafka, name, numbered(10))
        source = await KafkaSource(kafka, name, group=group, settings=QUICK_GROUP).open()
        _, number = await hold(source, 10)
        await source.commit({here: 2}, number, within(BOUND), beyond={here: TEN})
        await source.close(within(BOUND))
        # Each restart is an election.
        await asyncio.to_thread(broker.stop)
        await asyncio.to_thread(broker.start)
        await asyncio.to_thread(append, kafka, name, numbered(1990, 10))
        source = await KafkaSource(kafka, name, group=group, settings=QUICK_GROUP).open()
        held, number = await hold(source, 1992)
        assert [record.offset for record in held] == [2, 5, *range(10, 2000)]
        await source.commit({here: 5}, number, within(BOUND), beyond={here: Beyond.all_but(5, 12, [5, 10])})
        offset, text = await asyncio.to_thread(kept, kafka, group, name)
        found = read(text, offset, await asyncio.to_thread(cluster_of, kafka))
        assert found is not None
        assert found[0] == Beyond.all_but(5, 12, [5, 10])
        assert (found[1] or 0) > 0, "the epoch is that of before"
        chance = random.Random(3)
        many = Beyond(5, chance.getrandbits(1900) << 2)
        assert "offset.metadata.max.bytes" not in caplog.text
        await source.commit({here: 5}, number, within(BOUND), beyond={here: many})
        assert caplog.text.count("offset.metadata.max.bytes") == 1
        await source.commit({here: 6}, number, within(BOUND), beyond={here: many.seen_from(6)})
        offset, text = await asyncio.to_thread(kept, kafka, group, name)
        assert offset == 6
        assert len(text) <= 100
        await source.close(within(BOUND))
        assert caplog.text.count("offset.metadata.max.bytes") == 1
