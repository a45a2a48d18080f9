"""What a broker's refusals of commits come to for a source: said by mock brokers."""

import asyncio

import pytest
from broker import QUICK_GROUP, append, committed
from confluent_kafka import KafkaError
from mock_cluster import OFFSET_COMMIT, MockCluster

from quiesce.errors import CommitRefused
from quiesce.inbox.record import TopicPartition
from quiesce.kafka import KafkaSource
from quiesce.testing.contracts.source import handle, next_batch, numbered, offsets, values, within

BOUND = 30.0


async def test_K7_a_commit_that_is_refused_since_a_rebalance_is_on_is_made_after_it(group: str) -> None:
    with MockCluster() as cluster:
        cluster.create_topic("t")
        append(cluster.bootstrap, "t", numbered(10))
        source = await KafkaSource(cluster.bootstrap, "t", group=group, settings=QUICK_GROUP).open()
        batch = await next_batch(source)
        cluster.answer(OFFSET_COMMIT, *[KafkaError.REBALANCE_IN_PROGRESS] * 3)
        await source.commit(offsets(batch.records), batch.assignment, within(BOUND))
        found = await asyncio.to_thread(committed, cluster.bootstrap, group, "t", 1)
        assert found == offsets(batch.records)
        assert source.ours(batch.assignment, TopicPartition("t", 0))
        await source.close(within(BOUND))


async def test_K12_a_refusal_is_read_as_lost(group: str) -> None:
    """Whether or not the client says so, nothing more may be committed; then it begins anew."""
    with MockCluster() as cluster:
        cluster.create_topic("t")
        append(cluster.bootstrap, "t", numbered(10))
        settings = QUICK_GROUP | {"session.timeout.ms": 1500}
        source = await KafkaSource(cluster.bootstrap, "t", group=group, settings=settings).open()
        batch = await next_batch(source, 5)
        cluster.answer(OFFSET_COMMIT, KafkaError.UNKNOWN_MEMBER_ID)
        with pytest.raises(CommitRefused, match="UNKNOWN_MEMBER_ID"):
            await source.commit(offsets(batch.records), batch.assignment, within(BOUND))
        assert not source.ours(batch.assignment, TopicPartition("t", 0))
        with pytest.raises(CommitRefused):
            await source.commit(offsets(batch.records), batch.assignment, within(BOUND))
        assert await asyncio.to_thread(committed, cluster.bootstrap, group, "t", 1) == {}
        assert values(await handle(source, 10), 0) == numbered(10)
        assert await asyncio.to_thread(committed, cluster.bootstrap, group, "t", 1) == {TopicPartition("t", 0): 10}
        await source.close(within(BOUND))
