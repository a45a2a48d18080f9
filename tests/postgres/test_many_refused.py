"""Events that are refused again and again, as those of a missing topic are, beside others: everybody has a turn."""

from collections import Counter
from collections.abc import Awaitable, Callable
from uuid import UUID

import pytest
from outbox_databases import OpenLog, OpenStore
from outbox_table import event, write

from quiesce.outbox.outcome import DISPATCHED, Outcome, Retry
from quiesce.outbox.ports import OutboxStore
from quiesce.postgres.driver import Connection

LIMIT = 40
Open = Callable[..., Awaitable[OutboxStore]]


@pytest.fixture(params=["log", "row"])
def opened(request: pytest.FixtureRequest, open_log: OpenLog, open_store: OpenStore) -> Open:
    return open_log if request.param == "log" else open_store


async def refuse(store: OutboxStore, bad: set[UUID], offered: Counter[UUID], limit: int = LIMIT) -> set[UUID]:
    """One claim, of which the bad ones are refused and due again at once. Returns the others."""
    claim = await store.claim(limit)
    outcomes: dict[UUID, Outcome] = {}
    for one in claim.events:
        offered[one.id] += 1
        outcomes[one.id] = Retry("no topic", 0.0, counts=False) if one.id in bad else DISPATCHED
    await claim.settle(outcomes)
    return outcomes.keys() - bad


@pytest.mark.parametrize(("limit", "flood", "others"), [(LIMIT, 300, 30), (3, 24, 6), (1, 10, 3)])
async def test_O24_retries_that_are_always_due_leave_most_of_each_claim_to_what_is_new(
    db: Connection, opened: Open, limit: int, flood: int, others: int
) -> None:
    bad, good = [event(f"bad {n}") for n in range(flood)], [event(f"good {n}") for n in range(others)]
    await write(db, *bad, *good)
    store = await opened()
    shut, offered, seen = {one.id for one in bad}, Counter[UUID](), set[UUID]()
    claims = 0
    while len(seen) < len(good):
        claims += 1
        assert claims <= 20, f"{len(seen)} of {len(good)} came, {len(offered)} were offered at all"
        seen |= await refuse(store, shut, offered, limit)
    assert offered.keys() >= shut


async def test_O24_each_retry_has_its_turn(db: Connection, opened: Open) -> None:
    bad = [event(f"bad {n}") for n in range(200)]
    await write(db, *bad)
    store = await opened()
    shut, offered = {one.id for one in bad}, Counter[UUID]()
    for _ in range(80):
        await refuse(store, shut, offered)
    assert min(offered[one] for one in shut) >= 3, sorted(offered.values())


async def test_O5_of_a_key_whose_turn_has_not_come_nothing_is_handed_out(db: Connection, opened: Open) -> None:
    keys = [f"key {n}" for n in range(100)]
    first = [event(key) for key in keys]
    await write(db, *first)
    store = await opened()
    shut, offered = {one.id for one in first}, Counter[UUID]()
    for _ in range(20):
        await refuse(store, shut, offered)
    assert len(offered) == len(first)
    later = [event(key) for key in keys]
    await write(db, *later)
    key_of = {one.id: one.aggregate_id for one in [*first, *later]}
    came: list[UUID] = []
    for _ in range(60):
        claim = await store.claim(LIMIT)
        came += [one.id for one in claim.events]
        await claim.settle(dict.fromkeys([one.id for one in claim.events], DISPATCHED))
    assert sorted(came, key=str) == sorted(key_of, key=str)
    for key in keys:
        assert [one in shut for one in came if key_of[one] == key] == [True, False]


@pytest.mark.parametrize("large", ["payload", "header", "key"])
async def test_a_claim_ends_early_whatever_is_large_in_its_events(db: Connection, opened: Open, large: str) -> None:
    """Of one character a thousand times, so that the table has it compressed."""
    size, most = 20_000, 50_000
    long = "x" * size
    written = [
        event(
            f"{long if large == 'key' else 'k'} {n}",
            long if large == "payload" else "small",
            **({"note": long} if large == "header" else {}),
        )
        for n in range(8)
    ]
    await write(db, *written)
    store = await opened(max_claim_bytes=most)
    seen = set[UUID]()
    for _ in written:
        claim = await store.claim(100)
        assert len(claim.events) <= most // size
        seen |= {one.id for one in claim.events}
        await claim.settle(dict.fromkeys([one.id for one in claim.events], DISPATCHED))
    assert len(seen) == len(written)
