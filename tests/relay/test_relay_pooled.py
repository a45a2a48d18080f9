"""A relay behind a pooler whose pool has no connection left for it."""

import asyncio
import logging

import pytest
from pgbouncer import OpenPgBouncer

from quiesce.errors import Unavailable
from quiesce.postgres import OutboxLog, connect
from quiesce.relay import Relay
from quiesce.testing.contracts.publisher import within
from quiesce.testing.manual_stop import ManualStop
from quiesce.testing.memory_publisher import MemoryBroker, MemoryPublisher

pytestmark = pytest.mark.xdist_group("pgbouncer")


async def test_a_pool_that_is_too_small_is_named_as_a_cause(
    outbox: str, pgbouncer: OpenPgBouncer, caplog: pytest.LogCaptureFixture
) -> None:
    # The relay's lanes take the one session that there is.
    way = pgbouncer(default_pool_size="1").dsn(outbox)
    store = OutboxLog(way, statement_timeout=2.0)
    publisher = await MemoryPublisher(MemoryBroker()).open()
    relay = Relay(await store.open(), publisher, store_bound=1.0)
    stop = ManualStop("relay")
    with caplog.at_level(logging.WARNING, "quiesce.relay"):
        running = asyncio.ensure_future(relay.run(stop))
        async with asyncio.timeout(20):
            while "the database is away" not in caplog.text:
                await asyncio.sleep(0.02)
        stop.now(within=5.0)
        await running
    assert "default_pool_size must be larger than the number of relays" in caplog.text
    await store.close(within(5))
    await publisher.close(within(5))


async def test_a_pool_that_others_have_used_up_is_named_as_a_cause(outbox: str, pgbouncer: OpenPgBouncer) -> None:
    way = pgbouncer(default_pool_size="1").dsn(outbox)
    async with connect(way) as guest, guest.transaction():
        store = OutboxLog(way, statement_timeout=0.5)
        with pytest.raises(Unavailable, match="a pooler in between has no connection left"):
            await store.open()
        await store.close(within(5))


async def test_without_a_pooler_none_is_named(outbox: str) -> None:
    store = await OutboxLog(outbox).open()
    assert store.why_silent == ""
    await store.close(within(5))
