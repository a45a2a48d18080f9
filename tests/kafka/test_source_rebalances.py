"""What a source does while members come and go, on Apache Kafka."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

import pytest
from broker import NEW_PROTOCOL, QUICK_GROUP, append, committed

from quiesce.inbox.record import Record, TopicPartition
from quiesce.kafka import KafkaSource
from quiesce.testing.contracts.source import handle, hold, next_batch, numbered, offsets, refusal, values, within
from quiesce_pytest import MakeTopic

BOUND = 30.0

MakeSource = Callable[..., Awaitable[KafkaSource]]


@pytest.fixture
async def member(kafka: str, group: str) -> AsyncIterator[MakeSource]:
    """Makes members of the test's group."""
    made: list[KafkaSource] = []

    async def make(topic: str, settings: Mapping[str, object] = QUICK_GROUP, **more: object) -> KafkaSource:
        source = KafkaSource(kafka, topic, group=group, settings=settings, **more)  # type: ignore[arg-type]
        made.append(source)
        return await source.open()

    yield make
    for source in made:
        await source.close(within(5))


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(BOUND):
        while not holds():
            await asyncio.sleep(0.01)


async def test_K1_an_end_after_the_partition_went_and_came_back_changes_nothing(
    kafka: str, topic: MakeTopic, group: str, member: MakeSource
) -> None:
    name = topic(partitions=2)
    first = await member(name, revoke_bound=0.3)
    for partition in (0, 1):
        await asyncio.to_thread(append, kafka, name, numbered(10), partition)
    _, number = await hold(first, 20)
    second = await member(name)
    gone = (await next_batch(second)).records[0].source
    await second.close(within(BOUND))
    await until(lambda: gone in first.partitions)
    await asyncio.to_thread(append, kafka, name, numbered(5, 10), gone.partition)
    again = await handle(first, 15)
    assert values(again, gone.partition) == numbered(15)
    # Only now the first handler is done.
    assert not first.ours(number, gone)
    await refusal(first.commit({gone: 10}, number, within(BOUND)))
    assert (await asyncio.to_thread(committed, kafka, group, name, 2))[gone] == 15, "the group went back"


async def test_K9_all_handlers_end_at_the_instant_of_a_revoke_and_each_waits_for_its_commit(
    kafka: str, topic: MakeTopic, group: str, member: MakeSource
) -> None:
    name = topic(partitions=2)
    # Were it waited for, the test would not end.
    first = await member(name, revoke_bound=250.0)
    for partition in (0, 1):
        await asyncio.to_thread(append, kafka, name, numbered(50), partition)
    _, number = await hold(first, 100)
    joining = asyncio.ensure_future(member(name))
    await until(lambda: bool(first.leaving))
    (gone,) = first.leaving
    async with asyncio.timeout(BOUND):
        await asyncio.gather(*(first.commit({gone: one + 1}, number, within(BOUND)) for one in range(50)))
    second = await joining
    await asyncio.to_thread(append, kafka, name, numbered(1, 50), gone.partition)
    assert offsets(await handle(second, 1)) == {gone: 51}, "something was given back before its commit"


async def test_K13_what_was_read_ahead_of_a_partition_that_went_is_not_handed_out_when_it_is_back(
    kafka: str, topic: MakeTopic, group: str, member: MakeSource
) -> None:
    name = topic(partitions=2)
    first = await member(name)
    for partition in (0, 1):
        await asyncio.to_thread(append, kafka, name, numbered(100), partition)
    began = await handle(first, 1, limit=1)
    await until(lambda: first.read_ahead == 199)
    second = await member(name)
    theirs = await next_batch(second, 200)
    gone = theirs.records[0].source
    # All but the last ten.
    await second.commit({gone: 90}, theirs.assignment, within(BOUND))
    await second.close(within(BOUND))
    await until(lambda: gone in first.partitions)
    (kept,) = first.partitions - {gone}
    ours = began + await handle(first, 110 - len([one for one in began if one.source == kept]))
    assert values([one for one in ours if one not in began], gone.partition) == numbered(10, 90)
    assert values(ours, kept.partition) == numbered(100)


def laid(source: KafkaSource) -> set[TopicPartition]:
    """The pauses that the client was told of, on what is ours."""
    assert source._member is not None
    return source._member._pauses.laid & source.partitions


async def test_K15_pauses_follow_the_present_state_through_rebalances(
    kafka: str, topic: MakeTopic, group: str, member: MakeSource
) -> None:
    """The client keeps a pause while the partition is somebody else's."""
    name = topic(partitions=2)
    both = {TopicPartition(name, 0), TopicPartition(name, 1)}
    first = await member(name, max_poll_records=10)
    await until(lambda: first.partitions == both)
    for partition in (0, 1):
        await asyncio.to_thread(append, kafka, name, numbered(100), partition)
    assert not await first.fetch(10, full=both)
    await until(lambda: laid(first) == both)
    second = await member(name)
    await until(lambda: len(second.partitions) == 1)
    await until(lambda: laid(first) == first.partitions)
    await second.close(within(BOUND))
    # Back, and still nothing of it may be taken: it is paused as soon as something is read ahead of it.
    await until(lambda: first.partitions == both)
    assert not await first.fetch(10, full=both)
    await until(lambda: laid(first) == both)
    # Of each as many as may be read ahead, and what one call of the client brings.
    assert first.read_ahead <= 2 * (10 + 10), "back-pressure does not reach the client"
    # One is lifted, then the other, and nothing was lost or doubled.
    one, other = sorted(both)
    flowed: list[Record] = []
    async with asyncio.timeout(BOUND):
        while len(flowed) < 100:
            batch = await first.fetch(10, full={other})
            flowed += batch.records
            await first.commit(offsets(batch.records), batch.assignment, within(BOUND))
    assert values(flowed, one.partition) == numbered(100)
    await until(lambda: laid(first) == {other})
    assert values(await handle(first, 100, limit=10), other.partition) == numbered(100)
    await until(lambda: laid(first) == set())


@pytest.mark.parametrize("settings", [QUICK_GROUP, NEW_PROTOCOL], ids=["classic", "consumer"])
async def test_K19_three_members_that_start_and_stop_at_the_same_instant_are_closed_within_their_bound(
    settings: Mapping[str, object], kafka: str, topic: MakeTopic, group: str, member: MakeSource
) -> None:
    name = topic(partitions=3)
    for stage in ("at once", "one has something", "all is assigned", "each has one"):
        sources = await asyncio.gather(*(member(name, settings) for _ in range(3)))

        def shares(sources: list[KafkaSource] = sources) -> list[int]:
            return sorted(len(source.partitions) for source in sources)

        if stage == "one has something":
            await until(lambda: any(shares()))
        elif stage == "all is assigned":
            await until(lambda: sum(shares()) == 3)
        elif stage == "each has one":
            await until(lambda: shares() == [1, 1, 1])
        closed = await asyncio.gather(*(source.close(within(BOUND)) for source in sources))
        assert not any(one.forced for one in closed), stage
        # And they have left: whoever comes next waits for nobody's session.
        after = await member(name, settings)
        await until(lambda one=after: len(one.partitions) == 3)  # type: ignore[misc]
        await after.close(within(BOUND))


async def test_a_group_moves_to_the_other_protocol_and_back_one_member_at_a_time(
    kafka: str, topic: MakeTopic, group: str, member: MakeSource
) -> None:
    name = topic(partitions=2)
    handled = 0
    first = await member(name)
    for settings in (NEW_PROTOCOL, QUICK_GROUP):
        await until(lambda source=first: len(source.partitions) == 2)  # type: ignore[misc]
        second = await member(name, settings)
        await until(lambda one=first, two=second: len(one.partitions) == len(two.partitions) == 1)  # type: ignore[misc]
        for partition in (0, 1):
            await asyncio.to_thread(append, kafka, name, numbered(10, handled), partition)
        both = await asyncio.gather(handle(first, 10), handle(second, 10))
        handled += 10
        assert sorted(offsets([*both[0], *both[1]]).values()) == [handled, handled]
        await first.close(within(BOUND))
        first = second
    assert set((await asyncio.to_thread(committed, kafka, group, name, 2)).values()) == {handled}
