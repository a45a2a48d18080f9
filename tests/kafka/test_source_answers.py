"""What a broker's refusals come to for a source: said by mock brokers, or by a real one that has rights."""

import asyncio
from collections.abc import Callable, Mapping

import pytest
from broker import QUICK_GROUP, append, committed
from confluent_kafka import KafkaError
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public, but not in its __all__
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from mock_cluster import OFFSET_COMMIT, MockCluster

from quiesce.errors import CommitRefused, Unavailable
from quiesce.inbox.record import TopicPartition
from quiesce.kafka import KafkaSource
from quiesce.testing.contracts.source import handle, next_batch, numbered, offsets, values, within
from quiesce.testing.kafka import LocalKafka

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


def login(broker: LocalKafka) -> dict[str, object]:
    user: dict[str, object] = {
        "bootstrap.servers": broker.sasl_bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "reader",
        "sasl.password": "r-secret",
    }
    return user | QUICK_GROUP


def allow_group(broker: LocalKafka, group: str) -> None:
    right = AclBinding(
        ResourceType.GROUP,
        group,
        ResourcePatternType.LITERAL,
        "User:reader",
        "*",
        AclOperation.READ,
        AclPermissionType.ALLOW,
    )
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in admin.create_acls([right]).values():
        future.result(BOUND)


async def what_is_told(settings: Mapping[str, object], *topics: str) -> str:
    source = await KafkaSource(settings, *topics, group="readers").open()
    with pytest.raises(Unavailable) as told:
        await next_batch(source)
    await source.close(within(BOUND))
    return str(told.value)


@pytest.mark.needs("kafka")
@pytest.mark.xdist_group("kafka with users")
async def test_K21_missing_rights_and_missing_topics_are_told_apart_and_the_others_flow(
    own_kafka: Callable[..., LocalKafka], caplog: pytest.LogCaptureFixture
) -> None:
    broker = own_kafka(users={"reader": "r-secret"})
    for name in ("open", "guarded"):
        broker.create_topic(name, 1)
    broker.address.allow("reader", "read", "open")
    settings = login(broker)

    told = await what_is_told(settings, "open")
    assert "GROUP_AUTHORIZATION_FAILED" in told
    assert "'readers'" in told

    allow_group(broker, "readers")
    told = await what_is_told(settings, "guarded")
    assert "TOPIC_AUTHORIZATION_FAILED" in told
    assert "'guarded'" in told

    broker.address.allow("reader", "describe", "missing")
    told = await what_is_told(settings, "missing")
    assert "UNKNOWN_TOPIC_OR_PART" in told
    assert "'missing'" in told

    await asyncio.to_thread(append, broker.bootstrap, "open", numbered(5))
    caplog.clear()
    source = await KafkaSource(settings, "guarded", "missing", "open", group="readers").open()
    assert values(await handle(source, 5), 0) == numbered(5)
    for topic, error in (("guarded", "TOPIC_AUTHORIZATION_FAILED"), ("missing", "UNKNOWN_TOPIC_OR_PART")):
        assert [line for line in caplog.messages if f"'{topic}'" in line and error in line], caplog.text
    await source.close(within(BOUND))
