"""K21: topics that are missing, go, or may not be read, in both group protocols: each is named, and the others flow."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from uuid import uuid4

import pytest
from broker import NEW_PROTOCOL, QUICK_GROUP, append, committed
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public, but not in its __all__
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from quiesce.errors import Unavailable
from quiesce.inbox.record import Record
from quiesce.kafka import KafkaSource
from quiesce.testing.contracts.source import handle, numbered, offsets, values, within
from quiesce.testing.kafka import LocalKafka
from quiesce.testing.kafka_address import KafkaAddress
from quiesce_pytest import MakeTopic

BOUND = 40.0

both_protocols = pytest.mark.parametrize("protocol", [QUICK_GROUP, NEW_PROTOCOL], ids=["classic", "consumer"])


@pytest.fixture
async def members() -> AsyncIterator[list[KafkaSource]]:
    """Closed in the end."""
    made: list[KafkaSource] = []
    yield made
    for source in made:
        await source.close(within(5))


async def opened(members: list[KafkaSource], settings: Mapping[str, object], *topics: str, group: str) -> KafkaSource:
    source = KafkaSource(settings, *topics, group=group)
    members.append(source)
    return await source.open()


async def what_is_told(source: KafkaSource) -> str:
    async with asyncio.timeout(BOUND):
        while True:
            try:
                await source.fetch(10)
            except Unavailable as error:
                return str(error)


async def told_as_long_as_it_lasts(source: KafkaSource) -> str:
    """A fetch without a record does not come back as if all were well: that would count as getting on."""
    first = await what_is_told(source)
    for _ in range(3):
        with pytest.raises(Unavailable) as told:
            await source.fetch(10)
        assert str(told.value) == first
    return first


async def handled_in_time(source: KafkaSource, count: int) -> list[Record]:
    """So many records, which may be a while in coming; all is told until then."""
    found: list[Record] = []
    async with asyncio.timeout(BOUND):
        while len(found) < count:
            try:
                batch = await source.fetch(100)
            except Unavailable:
                continue
            if batch:
                found += batch.records
                await source.commit(offsets(batch.records), batch.assignment, within(BOUND))
                source.done(batch.assignment)
    return found


@both_protocols
async def test_K21_a_missing_topic_is_named_and_the_others_flow(
    protocol: Mapping[str, object],
    kafka: str,
    topic: MakeTopic,
    group: str,
    members: list[KafkaSource],
    caplog: pytest.LogCaptureFixture,
) -> None:
    there, missing = topic(partitions=1), f"missing-{uuid4().hex[:8]}"
    settings = {"bootstrap.servers": kafka, **protocol}
    source = await opened(members, settings, there, missing, group=group)
    await asyncio.to_thread(append, kafka, there, numbered(5))
    assert values(await handle(source, 5), 0) == numbered(5)
    named = [line for line in caplog.messages if f"'{missing}' is not there" in line]
    assert len(named) == 1, "told once, while others flow"
    await source.fetch(10)


@both_protocols
async def test_K21_no_topic_at_all_is_told_until_one_is_there(
    protocol: Mapping[str, object], kafka: str, group: str, members: list[KafkaSource]
) -> None:
    missing = f"missing-{uuid4().hex[:8]}"
    settings = {"bootstrap.servers": kafka, **protocol}
    sources = [await opened(members, settings, missing, group=group) for _ in range(2)]
    for source in sources:
        told = await told_as_long_as_it_lasts(source)
        assert "UNKNOWN_TOPIC_OR_PART" in told
        assert f"topic '{missing}' is not there" in told
    await asyncio.to_thread(KafkaAddress(kafka).create_topic, missing, 1)
    for source in sources:
        # One of the two gets nothing, which is no trouble.
        async with asyncio.timeout(BOUND):
            while True:
                try:
                    await source.fetch(1)
                    break
                except Unavailable:
                    continue


@both_protocols
async def test_K21_a_topic_that_is_deleted_while_it_is_read_is_told_and_flows_when_it_is_back(
    protocol: Mapping[str, object], kafka: str, topic: MakeTopic, group: str, members: list[KafkaSource]
) -> None:
    kept, gone = topic(partitions=1), topic(partitions=1)
    settings = {"bootstrap.servers": kafka, **protocol}
    source = await opened(members, settings, kept, gone, group=group)
    alone = await opened(members, settings, gone, group=f"{group}-alone")
    await asyncio.to_thread(append, kafka, gone, numbered(5))
    await asyncio.to_thread(append, kafka, kept, numbered(5))
    assert len(await handled_in_time(source, 10)) == 10
    assert len(await handled_in_time(alone, 5)) == 5
    address = KafkaAddress(kafka)
    await asyncio.to_thread(address.delete_topic, gone)
    told = await told_as_long_as_it_lasts(alone)
    assert f"topic '{gone}' is not there" in told
    await asyncio.to_thread(append, kafka, kept, numbered(5, 5))
    assert values(await handle(source, 5), 0) == numbered(5, 5)
    await asyncio.to_thread(address.create_topic, gone, 1)
    await asyncio.to_thread(append, kafka, gone, numbered(20, 5))
    for one in (alone, source):
        # Both offsets and records of the former topic are gone: what is in the new one is read, all of it.
        async with asyncio.timeout(BOUND):
            seen: set[bytes | None] = set()
            while seen < set(numbered(20, 5)):
                seen |= {record.value for record in await handled_in_time(one, 1)}


def login(broker: LocalKafka, protocol: Mapping[str, object]) -> dict[str, object]:
    user: dict[str, object] = {
        "bootstrap.servers": broker.sasl_bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "reader",
        "sasl.password": "r-secret",
    }
    return {**user, **protocol}


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


@pytest.mark.needs("kafka")
@pytest.mark.xdist_group("kafka with users")
@pytest.mark.timeout(180)
@both_protocols
async def test_K21_missing_rights_and_missing_topics_are_told_apart_the_others_flow_and_a_right_is_noticed(
    protocol: Mapping[str, object],
    own_kafka: Callable[..., LocalKafka],
    members: list[KafkaSource],
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker = own_kafka(users={"reader": "r-secret"})
    for name in ("open", "guarded", "seen"):
        broker.create_topic(name, 1)
    broker.address.allow("reader", "read", "open")
    # It may know of this one, and not read it.
    broker.address.allow("reader", "describe", "seen")
    settings = login(broker, protocol)
    group = "readers"

    source = await opened(members, settings, "open", group=group)
    told = await told_as_long_as_it_lasts(source)
    assert "GROUP_AUTHORIZATION_FAILED" in told
    assert "'readers'" in told
    allow_group(broker, group)
    await asyncio.to_thread(append, broker.bootstrap, "open", numbered(5))
    assert values(await handled_in_time(source, 5), 0) == numbered(5)
    await source.close(within(BOUND))

    for forbidden in ("guarded", "seen"):
        source = await opened(members, settings, forbidden, group=group)
        told = await told_as_long_as_it_lasts(source)
        assert "TOPIC_AUTHORIZATION_FAILED" in told
        assert f"'{forbidden}'" in told
        await source.close(within(BOUND))

    broker.address.allow("reader", "describe", "missing")
    source = await opened(members, settings, "missing", group=group)
    told = await told_as_long_as_it_lasts(source)
    assert "UNKNOWN_TOPIC_OR_PART" in told
    assert "'missing'" in told
    await source.close(within(BOUND))

    await asyncio.to_thread(append, broker.bootstrap, "open", numbered(5, 5))
    caplog.clear()
    source = await opened(members, settings, "guarded", "seen", "missing", "open", group=group)
    assert values(await handled_in_time(source, 5), 0) == numbered(5, 5)
    await source.fetch(1)
    wrong = {"guarded": "TOPIC_AUTHORIZATION_FAILED", "missing": "UNKNOWN_TOPIC_OR_PART"}
    for topic, error in wrong.items():
        assert [line for line in caplog.messages if f"'{topic}'" in line and error in line], caplog.text

    # Rights that come while it runs: the group is asked anew, and what was there already is not touched.
    assert {one.topic for one in source.partitions} == {"open", "seen"}
    for topic in ("guarded", "seen"):
        broker.address.allow("reader", "read", topic)
        await asyncio.to_thread(append, broker.bootstrap, topic, numbered(5))
    assert {record.topic for record in await handled_in_time(source, 10)} == {"guarded", "seen"}
    assert set((await asyncio.to_thread(committed, broker.bootstrap, group, "open", 1)).values()) == {10}
