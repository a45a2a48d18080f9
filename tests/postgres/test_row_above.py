"""A claim begins above the claims that its store has open, and overtakes nothing that waits below."""

import json

from hypothesis import given
from hypothesis import strategies as st
from outbox_databases import OpenStore
from outbox_table import event, write

from quiesce.outbox.outcome import DISPATCHED
from quiesce.postgres import connect, enqueue
from quiesce.postgres import row_statements as sql
from quiesce.postgres.claim_limits import begin
from quiesce.postgres.driver import Connection
from quiesce.postgres.row_claim import RowClaim
from quiesce.postgres.row_positions import multirange, ranges


@given(st.sets(st.integers(0, 60)))
def test_the_ranges_of_numbers_hold_these_and_no_others(numbers: set[int]) -> None:
    text = multirange([ranges(sorted(numbers))])
    parts = [] if text == "{}" else text.strip("{}").replace("],[", "]|[").split("|")
    held = [n for part in parts for first, last in [json.loads(part)] for n in range(first, last + 1)]
    assert held == sorted(numbers)


def test_parts_without_numbers_leave_nothing_behind() -> None:
    assert multirange(["", "[1,3]", "", "[5,5]"]) == "{[1,3],[5,5]}"


async def test_no_lock_of_an_open_claim_is_tried_again(db: Connection) -> None:
    await write(db, *(event(f"key {n}") for n in range(60)))
    ours = multirange([ranges(range(1, 51))])
    await db.execute(begin(db.get_server_version().major, statement_timeout=10.0, claim_bound=20.0))
    await db.execute(
        f"PREPARE explained (bigint, text, bigint, bigint, bigint, bigint) AS {sql.statements(sql.OWN).claim}"
    )
    text = await db.fetchval(
        f"EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, FORMAT JSON) EXECUTE explained (5, '{ours}', 99999, 0, 51, 10)"
    )
    await db.execute("ROLLBACK; DEALLOCATE explained")

    def nodes(plan: dict[str, object]) -> list[dict[str, object]]:
        below = plan.get("Plans", [])
        assert isinstance(below, list)
        return [plan, *(node for one in below for node in nodes(one))]

    (lock,) = [node for node in nodes(json.loads(text)[0]["Plan"]) if node["Node Type"] == "LockRows"]
    assert [node["Actual Rows"] for node in nodes(lock) if node["Node Type"] == "Index Scan"] == [5]


def keys(claim: RowClaim) -> list[str]:
    return [one.aggregate_id for one in claim.events]


async def settle(claim: RowClaim) -> None:
    await claim.settle({one.id: DISPATCHED for one in claim.events})


async def test_O1_what_commits_late_below_an_open_claim_holds_its_key_and_comes_next(
    outbox: str, db: Connection, open_store: OpenStore
) -> None:
    store = await open_store(claims=4)
    async with connect(outbox) as slow:
        transaction = slow.transaction()
        await transaction.start()
        late = await enqueue(slow, event("k"))
        await write(db, *(event(f"other {n}") for n in range(4)))
        first = await store.claim(2)
        await transaction.commit()
    await write(db, event("k"), event("more"))
    second = await store.claim(3)
    # The second one of the key is in reach and waits for the first, which stands below.
    assert keys(second) == ["other 2", "other 3"]
    third = await store.claim(10)
    assert third.events[0].id == late
    await settle(second)
    fourth = await store.claim(10)
    assert sorted([*keys(third), *keys(fourth)]) == ["k", "k", "more"]
    for claim in (first, third, fourth):
        await settle(claim)
    assert await db.fetchval("SELECT count(*) FROM outbox_event WHERE dispatched_at IS NULL") == 0


async def test_what_an_open_claim_gives_back_is_claimed_before_the_rest_of_its_key(
    db: Connection, open_store: OpenStore
) -> None:
    store = await open_store(claims=4)
    await write(db, *(event(key) for key in ("a", "b", "a", "b", "c", "d")))
    first, second = await store.claim(2), await store.claim(2)
    assert (keys(first), keys(second)) == (["a", "b"], ["a", "b"])
    await second.release()
    third = await store.claim(2)
    assert keys(third) == ["a", "b"]
    assert [one.position for one in third.events] == [one.position for one in second.events]
    for claim in (first, third):
        await settle(claim)


async def test_a_page_that_finds_nothing_above_looks_below_at_once(
    outbox: str, db: Connection, open_store: OpenStore
) -> None:
    store = await open_store(claims=4)
    async with connect(outbox) as slow:
        transaction = slow.transaction()
        await transaction.start()
        late = await enqueue(slow, event("late"))
        await write(db, event("a"), event("b"))
        first = await store.claim(2)
        await transaction.commit()
    second = await store.claim(2)
    assert [one.id for one in second.events] == [late]
    for claim in (first, second):
        await settle(claim)
