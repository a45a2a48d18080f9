"""What comes again and what does not, by what was committed and what was put away."""

from quiesce.inbox.beyond import Beyond
from quiesce.inbox.record import TopicPartition
from quiesce.testing.contracts.expectations import within
from quiesce.testing.contracts.source.world import (
    BOUND,
    Check,
    SourceWorld,
    all_in_hand,
    handle,
    hold,
    next_batch,
    numbered,
    offsets,
    quiet,
    values,
)


async def what_is_not_committed_comes_to_the_next_member(world: SourceWorld) -> None:
    first = await world.source()
    await world.append(0, numbered(20))
    await hold(first, 20)
    await first.close(within(BOUND))
    assert await world.committed() == {}, "closing committed what nobody said was handled"
    assert values(await handle(await world.source(), 20), 0) == numbered(20)


async def what_is_committed_does_not_come_again(world: SourceWorld) -> None:
    first = await world.source()
    await world.append(0, numbered(20))
    held, number = await hold(first, 20)
    await first.commit({held[0].source: 12}, number, within(BOUND))
    await first.close(within(BOUND))
    assert values(await handle(await world.source(), 8), 0) == numbered(8, 12)


async def what_is_put_away_unfinished_comes_again(world: SourceWorld) -> None:
    """Else the next commit of the partition would pass over it."""
    source = await world.source()
    await world.append(0, numbered(20))
    batch = await next_batch(source, limit=10)
    half = len(batch.records) // 2
    await source.commit({batch.records[0].source: half}, batch.assignment, within(BOUND))
    source.done(batch.assignment)
    again = values(await handle(source, 20 - half), 0)
    assert again == numbered(20 - half, half), f"after {half} of {len(batch.records)}: {again}"


async def what_is_done_behind_the_offset_does_not_come_again(world: SourceWorld) -> None:
    """Neither to the member that did it nor to any after it, however often one of them commits."""
    first = await world.source()
    await world.append(0, numbered(10))
    held, number = await hold(first, 10)
    partition = held[0].source
    beyond = Beyond.all_but(2, 10, [2, 3, 6, 9])
    await first.commit({partition: 2}, number, within(BOUND), beyond={partition: beyond})
    first.done(number)
    held, number = await hold(first, 4)
    assert [record.offset for record in held] == [2, 3, 6, 9]
    await first.commit({partition: 3}, number, within(BOUND))
    await first.close(within(BOUND))
    second = await world.source()
    held, number = await hold(second, 3)
    assert [record.offset for record in held] == [3, 6, 9]
    await second.commit({partition: 3}, number, within(BOUND), beyond={partition: Beyond.all_but(3, 7, [3])})
    await second.commit({partition: 7}, number, within(BOUND))
    assert await world.committed() == {partition: 9}, "all in front of it is done"
    await second.close(within(BOUND))
    third = await world.source()
    assert [record.offset for record in await handle(third, 1)] == [9]
    await world.append(0, numbered(3, 10))
    assert values(await handle(third, 3), 0) == numbered(3, 10)


async def what_is_put_away_finished_does_not(world: SourceWorld) -> None:
    source = await world.source()
    await world.append(0, numbered(20))
    await handle(source, 20, limit=3)
    source.done((await source.fetch(10)).assignment)
    await world.append(0, numbered(5, 20))
    assert values(await handle(source, 5), 0) == numbered(5, 20)


async def one_partition_is_put_away_alone(world: SourceWorld) -> None:
    source, _, number = await all_in_hand(world)
    put_away = TopicPartition(world.topic, 1)
    source.done(number, [put_away])
    again, later = await hold(source, 10)
    assert values(again, 1) == numbered(10)
    await source.commit({put_away: 10}, later, within(BOUND))
    await quiet(source)
    source.done(number)
    assert offsets(await handle(source, 10)) == {TopicPartition(world.topic, 0): 10}


OF_POSITIONS: tuple[Check, ...] = (
    what_is_not_committed_comes_to_the_next_member,
    what_is_committed_does_not_come_again,
    what_is_put_away_unfinished_comes_again,
    what_is_done_behind_the_offset_does_not_come_again,
    what_is_put_away_finished_does_not,
    one_partition_is_put_away_alone,
)
