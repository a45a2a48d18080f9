"""A relay over the log store while its broker or its database is away: real servers, killed, cut off or silent."""

import asyncio
import time
from collections.abc import Callable

import pytest
from relays_on_kafka import (
    IN_FLIGHT,
    MakeTopic,
    arrived,
    dispatched,
    fill,
    firsts,
    in_order,
    relay_over,
    running,
    until,
    until_dispatched,
)
from wire_proxy import WireProxy

from quiesce.outbox.events import ClaimSettled, OutageBegan, OutageEnded
from quiesce.postgres import connect, schema
from quiesce.testing.kafka import LocalKafka
from quiesce.testing.kafka_address import KafkaAddress
from quiesce.testing.manual_stop import ManualStop
from quiesce.testing.postgres import LocalPostgres

pytestmark = pytest.mark.needs("kafka")

EVENTS = 3000


async def set_aside(dsn: str) -> int:
    """Events that were refused, ever: an outage leaves none."""
    async with connect(dsn) as connection:
        return int(await connection.fetchval("SELECT count(*) FROM outbox_parked"))


async def with_tables(server: LocalPostgres) -> str:
    async with connect(server.dsn()) as connection:
        await schema.apply(connection)
    return server.dsn()


def outages(stop: ManualStop) -> list[str]:
    return [told.what for told in stop.told(OutageBegan)]


@pytest.mark.xdist_group("kafka to kill")
async def test_O8_a_broker_that_is_killed_and_comes_back_costs_no_attempt_and_no_event(
    own_kafka: Callable[[], LocalKafka], database: str
) -> None:
    broker = own_kafka()
    broker.create_topic("orders", 3)
    await fill(database, "orders", EVENTS)
    relay = relay_over(database, broker.bootstrap, publish_bound=0.5)
    async with running(relay) as (stop,):
        await until(lambda: stop.told(ClaimSettled))
        await asyncio.to_thread(broker.kill)
        # What is committed meanwhile waits; and it is tried again and again.
        await fill(database, "orders", 100)
        await until(lambda: relay.progress.outage == "broker")
        before = len(stop.told(OutageEnded))
        moved = await dispatched(database)
        await asyncio.to_thread(broker.start)
        await until_dispatched(database, EVENTS + 100)
        await until(lambda: relay.progress.outage is None)
    assert moved < EVENTS + 100
    assert outages(stop)[0] == "broker"
    assert len(stop.told(OutageEnded)) > before
    assert not stop.abandoned
    assert await set_aside(database) == 0
    seen = arrived(broker.bootstrap, "orders")
    assert firsts(seen) == await in_order(database)
    # Each time that the producer was given up, what had no answer is sent again.
    assert sum(map(len, seen.values())) - EVENTS - 100 <= IN_FLIGHT * len(outages(stop))


async def test_a_database_that_is_killed_and_comes_back_loses_and_skips_nothing(
    own_postgres: Callable[..., LocalPostgres], kafka: str, topic: MakeTopic
) -> None:
    name, server = topic("orders", partitions=3), own_postgres()
    dsn = await with_tables(server)
    await fill(dsn, name, EVENTS)
    relay = relay_over(dsn, kafka)
    async with running(relay) as (stop,):
        await until(lambda: stop.told(ClaimSettled))
        await asyncio.to_thread(server.kill)
        await until(lambda: relay.progress.outage == "database")
        await asyncio.to_thread(server.start)
        await fill(dsn, name, 100)
        await until_dispatched(dsn, EVENTS + 100)
    assert not stop.abandoned
    assert await set_aside(dsn) == 0
    seen = arrived(kafka, name)
    assert firsts(seen) == await in_order(dsn)
    assert sum(map(len, seen.values())) - EVENTS - 100 <= IN_FLIGHT


async def test_O18_lines_to_the_database_that_are_cut_again_and_again_lose_and_skip_nothing(
    database: str, kafka: str, topic: MakeTopic
) -> None:
    name, cuts = topic("orders", partitions=3), 0
    await fill(database, name, EVENTS)
    async with WireProxy(database) as proxy:
        relay = relay_over(proxy.dsn, kafka)
        async with running(relay) as (stop,):
            while (moved := await dispatched(database)) < EVENTS and cuts < 5:
                proxy.cut()
                cuts += 1
                await until_dispatched(database, min(EVENTS, moved + 50))
            await until_dispatched(database, EVENTS)
    assert cuts == 5
    assert not stop.abandoned
    assert await set_aside(database) == 0
    seen = arrived(kafka, name)
    assert firsts(seen) == await in_order(database)
    assert sum(map(len, seen.values())) - EVENTS <= IN_FLIGHT * cuts


@pytest.mark.parametrize("gone", ["broker", "database", "broker and database"])
@pytest.mark.xdist_group("kafka to pause")
async def test_a_stop_is_bounded_whoever_is_silent(
    paused_kafka: LocalKafka, own_postgres: Callable[..., LocalPostgres], gone: str
) -> None:
    name = f"orders-{time.monotonic_ns()}"
    await asyncio.to_thread(KafkaAddress(paused_kafka.bootstrap).create_topic, name, 3)
    server = own_postgres()
    dsn = await with_tables(server)
    await fill(dsn, name, EVENTS)
    relay, within = relay_over(dsn, paused_kafka.bootstrap), 3.0
    try:
        async with running(relay, within=within) as (stop,):
            await until(lambda: stop.told(ClaimSettled))
            if "broker" in gone:
                paused_kafka.pause()
            if "database" in gone:
                server.pause()
            began = time.monotonic()
        took = time.monotonic() - began
    finally:
        server.resume()
        paused_kafka.resume()
    # The stop's own bound, two seconds for the closing of each of the two resources, and a machine that is busy.
    assert took < within + 2 * 2.0 + 2.0
    async with running(relay_over(dsn, paused_kafka.bootstrap)):
        await until_dispatched(dsn, EVENTS)
    seen = arrived(paused_kafka.bootstrap, name)
    assert firsts(seen) == await in_order(dsn)
    assert sum(map(len, seen.values())) <= EVENTS + IN_FLIGHT
