"""A claim that has ended is gone with its events, and does not wait for the interpreter to look for garbage."""

import asyncio
import gc
import weakref
from typing import Literal

import pytest
from outbox_databases import OpenLog, OpenStore
from outbox_table import event, until, write

from quiesce.outbox.outcome import DISPATCHED
from quiesce.outbox.ports import Claim, OutboxStore
from quiesce.postgres.driver import Connection

Ended = Literal["settled", "released"]


async def claimed_and_ended(store: OutboxStore, how: Ended) -> "weakref.ref[Claim]":
    async def has() -> bool:
        claims.append(await store.claim(10))
        return bool(claims[-1].events)

    claims: list[Claim] = []
    await until(has)
    claim = claims[-1]
    if how == "settled":
        await claim.settle({one.id: DISPATCHED for one in claim.events})
    else:
        await claim.release()
    return weakref.ref(claim)


async def is_gone_by_itself(store: OutboxStore, how: Ended) -> None:
    gc.disable()
    try:
        claim = await claimed_and_ended(store, how)
        # What was called back meanwhile may have it in hand until the loop's next turns.
        for _ in range(5):
            await asyncio.sleep(0)
        assert claim() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("how", ["settled", "released"])
async def test_a_claim_of_the_log_store_that_has_ended_is_gone(db: Connection, open_log: OpenLog, how: Ended) -> None:
    await write(db, *(event(f"key {number}") for number in range(10)))
    await is_gone_by_itself(await open_log(), how)


@pytest.mark.parametrize("how", ["settled", "released"])
async def test_a_claim_of_the_row_store_that_has_ended_is_gone(
    db: Connection, open_store: OpenStore, how: Ended
) -> None:
    await write(db, *(event(f"key {number}") for number in range(10)))
    await is_gone_by_itself(await open_store(), how)
