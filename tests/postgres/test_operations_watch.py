"""`OutboxWatch` tells what the tables say, and the metrics show it; a database that is away ends nothing."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from operations_table import as_if_new, belongs_to, park, written
from outbox_table import until
from prometheus_client import CollectorRegistry

from quiesce.errors import SettingsError
from quiesce.metrics import PrometheusMetrics
from quiesce.outbox.events import OutboxMeasured
from quiesce.postgres import OutboxWatch, connect, open_pool
from quiesce.postgres.pausing import pause
from quiesce.testing.manual_stop import ManualStop


@pytest.fixture
async def outbox(outbox_database: str) -> AsyncIterator[str]:
    async with as_if_new(outbox_database) as dsn:
        yield dsn


async def test_it_tells_what_waits_and_goes_on_after_a_failure(outbox: str, caplog: pytest.LogCaptureFixture) -> None:
    async with connect(outbox) as db:
        await belongs_to(db, "log")
        ids = await written(db, 10)
        await park(db, ids[:1], "dead")
        await pause(db, said_by="me")
        pool = await open_pool(outbox, min_size=0, max_size=1).open()
        stop = ManualStop()
        running = asyncio.create_task(OutboxWatch(pool, every=0.05).run(stop))
        try:
            await until(lambda: count(stop, 2))
            first = stop.told(OutboxMeasured)[0]
            assert (first.outbox, first.waiting, first.exact, first.dead, first.paused) == ("outbox", 10, True, 1, True)
            assert first.owned_lanes == 0
            async with connect(outbox) as owner, owner.transaction():
                await owner.execute("SELECT pg_advisory_xact_lock('outbox_lane'::regclass::oid::int4, 5)")
                seen = len(stop.told(OutboxMeasured))
                await until(lambda: count(stop, seen + 2))
                assert stop.told(OutboxMeasured)[-1].owned_lanes == 1
            await db.execute("ALTER TABLE outbox_control RENAME TO elsewhere")
            await until(lambda: logged(caplog))
            await db.execute("ALTER TABLE elsewhere RENAME TO outbox_control")
            told = len(stop.told(OutboxMeasured))
            await until(lambda: count(stop, told + 2))
            assert caplog.text.count("could not be looked at") == 1
        finally:
            stop.now()
            async with asyncio.timeout(5):
                await running
            await pool.close()
            await db.execute("ALTER TABLE IF EXISTS elsewhere RENAME TO outbox_control")


async def count(stop: ManualStop, events: int) -> bool:
    return len(stop.told(OutboxMeasured)) >= events


async def logged(caplog: pytest.LogCaptureFixture) -> bool:
    return "could not be looked at" in caplog.text


def test_the_metrics_show_it() -> None:
    registry = CollectorRegistry()
    PrometheusMetrics(registry).observe(OutboxMeasured("outbox", 7, True, 1.5, 1, 2, 3, True, 15))
    shown = {
        (sample.name, sample.labels.get("state")): sample.value
        for metric in registry.collect()
        for sample in metric.samples
        if sample.labels.get("outbox") == "outbox"
    }
    assert shown.pop(("outbox_measured_timestamp_seconds", None)) > 1e9
    assert shown == {
        ("outbox_waiting_events", None): 7,
        ("outbox_oldest_seconds", None): 1.5,
        ("outbox_parked_events", "retry"): 1,
        ("outbox_parked_events", "held"): 2,
        ("outbox_parked_events", "dead"): 3,
        ("outbox_paused", None): 1,
        ("outbox_owned_lanes", None): 15,
    }


@pytest.mark.parametrize("setting", ["every", "timeout"])
async def test_wrong_settings_are_refused(outbox: str, setting: str) -> None:
    pool = await open_pool(outbox, min_size=0).open()
    try:
        with pytest.raises(SettingsError, match=f"got {setting} 0"):
            OutboxWatch(pool, every=0.0) if setting == "every" else OutboxWatch(pool, timeout=0.0)
    finally:
        await pool.close()
