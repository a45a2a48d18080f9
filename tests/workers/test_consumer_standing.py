"""A partition that stands behind one record says so: in the log, again now and then, and in readiness."""

import asyncio
from typing import Any

import pytest
from scripted_asides import Kept
from scripted_handler import EVERY_HALF_SECOND, Handler, run
from scripted_source import MemorySource, record

from quiesce.inbox.record import TopicPartition
from quiesce.testing import virtual_time
from quiesce.workers import BadInput, Consumer, Retries, batches
from quiesce.workers.standstill import REMIND

ZERO, ONE = TopicPartition("products", 0), TopicPartition("products", 1)
RETRIES = Retries(attempts=2, backoff=EVERY_HALF_SECOND)


@pytest.mark.parametrize("why", ["fails", "held", "held in batches", "cannot be set aside"])
def test_a_partition_that_stands_behind_a_record_says_so(why: str, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        source = MemorySource([record(n, key=b"k%d" % n) for n in range(40)] + [record(0, 1)])
        loop = asyncio.get_running_loop()
        told: list[str | None] = []
        handler = Handler(seconds=0.01, fails={3: 10**6} if why in ("fails", "cannot be set aside") else {})

        def decode(one: object) -> None:
            if "held" in why and getattr(one, "offset", 0) == 3 and loop.time() < 3 * REMIND:
                raise ValueError("no JSON")

        async def handle(one: Any, *_: None) -> None:
            if loop.time() > 3 * REMIND:
                handler.fails.clear()
            for each in one if isinstance(one, list) else [one]:
                await handler(each)

        consumer = Consumer(
            source,
            batches(handle) if "batches" in why else handle,
            decode=decode,
            batch=5,
            in_flight=10,
            retries=RETRIES,
            bad_input=BadInput(undecodable="hold"),
            dead_letters=Kept(refuses=[3]) if why == "cannot be set aside" else None,
        )

        def ask() -> None:
            told.append(consumer.why_not_ready(loop.time()))

        for at in (20.0, 2 * REMIND):
            loop.call_at(at, ask)
        if why != "cannot be set aside":
            loop.call_at(4 * REMIND, ask)
        await run(consumer, stop_at=4 * REMIND + 10)
        assert ONE in source.committed, "the others flow"
        assert told[0] is None, "a wait is no standstill yet"
        assert told[1] is not None
        assert "products[0] stands behind products[0]@3" in told[1]
        if why != "cannot be set aside":
            assert told[2] is None
            assert source.committed == {ZERO: 40, ONE: 1}

    virtual_time.run(main())
    said = [line for line in caplog.messages if "stands behind products[0]@3" in line]
    assert 2 <= len(said) <= 5, "once, and again now and then"


def test_a_handler_that_takes_long_is_no_standstill(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        source = MemorySource([record(n) for n in range(40)])
        loop = asyncio.get_running_loop()
        told: list[str | None] = []
        consumer = Consumer(source, Handler(seconds=200.0), in_flight=10)
        loop.call_at(190.0, lambda: told.append(consumer.why_not_ready(loop.time())))
        await run(consumer, stop_at=195.0)
        assert told == [None]

    virtual_time.run(main())
    assert "stands behind" not in caplog.text
