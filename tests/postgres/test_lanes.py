"""Sharing lanes: one owner each, fair shares, quick changes, and no trace in the database."""

import asyncio
import random
import time

import pytest
from lane_members import (
    ALL,
    END_LOCKS,
    LOCK_CONNECTIONS,
    Join,
    Member,
    eventually,
    never_two_owners,
    shared_out,
    tending,
)

from quiesce.errors import IntakeClosed, SchemaMissing, SettingsError
from quiesce.postgres import connect, schema
from quiesce.postgres.driver import Connection
from quiesce.postgres.lanes import Lanes
from quiesce.testing.contracts.expectations import within
from quiesce.testing.postgres_address import PostgresAddress


async def test_a_single_member_owns_everything_at_its_first_call(join: Join, look: Connection) -> None:
    member = join("alone")
    assert member.held == {}
    await member.tend()
    assert member.held.keys() == ALL
    rows = await look.fetch("SELECT lane, epoch, owner FROM outbox_lane")
    assert {row["lane"]: row["epoch"] for row in rows} == member.held
    assert all(row["owner"].startswith("alone on ") for row in rows)
    assert member.wants_rid_of == frozenset()


@pytest.mark.parametrize("count", [2, 3, 5])
async def test_joins_and_leaves_are_shared_out_anew(join: Join, count: int) -> None:
    members = [join(f"m{number}") for number in range(count)]
    async with never_two_owners(members):
        for joined in range(1, count + 1):
            present = members[:joined]
            await present[-1].tend()
            took = await eventually(lambda: shared_out(present))  # noqa: B023 - awaited here
            print(f"join of member {joined}: {took:.3f} s")
        for left in range(1, count):
            began = time.monotonic()
            assert await members[left - 1].close(within(2.0)) == 0
            await eventually(lambda: shared_out(members[left:]))  # noqa: B023 - awaited here
            print(f"leave of {left} of {count}: {time.monotonic() - began:.3f} s")
    assert not any(member.losses for member in members)


async def test_all_join_and_leave_at_once(join: Join) -> None:
    members = [join(f"m{number}") for number in range(5)]
    async with never_two_owners(members):
        await asyncio.gather(*(member.tend() for member in members))
        await eventually(lambda: shared_out(members))
        await asyncio.gather(*(member.close(within(2.0)) for member in members[:4]))
        await eventually(lambda: members[4].held.keys() == ALL)


async def test_coming_going_and_being_cut_at_random(join: Join, look: Connection) -> None:
    """Whatever happens, no lane has two owners, and in the end every lane has one, with the epoch in the table."""
    chance = random.Random(4)
    members = [join(f"m{number}") for number in range(8)]
    present: list[Member] = []
    gone: list[Member] = []
    async with never_two_owners(members):
        for _ in range(40):
            match chance.choice(["join", "join", "leave", "cut", "read", "wait"]):
                case "join" if new := [member for member in members if member not in present + gone]:
                    await new[0].tend()
                    present.append(new[0])
                case "leave" if len(present) > 2:
                    gone.append(leaving := present.pop(chance.randrange(len(present))))
                    await leaving.close(within(2.0))
                case "cut":
                    await look.execute(f"{END_LOCKS} LIMIT {chance.randint(1, 3)}")
                case "read" if present:
                    reader = chance.choice(present)
                    reader.reading = set(chance.sample(range(16), 4))
                case _:
                    await asyncio.sleep(chance.random() / 5)
            await asyncio.gather(*(member.tend() for member in present), return_exceptions=True)
        for member in present:
            member.reading = set()
        await tending(present, lambda: shared_out(present))
    epochs = {row["lane"]: row["epoch"] for row in await look.fetch("SELECT lane, epoch FROM outbox_lane")}
    assert epochs == {lane: epoch for member in present for lane, epoch in member.held.items()}


async def test_more_members_than_lanes(join: Join) -> None:
    members = [join(f"m{number}") for number in range(18)]
    await asyncio.gather(*(member.tend() for member in members))
    await eventually(lambda: shared_out(members), 5.0)
    owner = next(member for member in members if member.held)
    await owner.close(within(2.0))
    await eventually(lambda: shared_out([member for member in members if member is not owner]))


async def test_an_idle_member_keeps_one_connection(join: Join, look: Connection, database: str) -> None:
    members = [join(f"m{number}") for number in range(17)]
    await asyncio.gather(*(member.tend() for member in members))
    await eventually(lambda: shared_out(members), 5.0)
    # Those with lanes need no second one either, once they have them.
    others = f"SELECT count(*) FROM ({LOCK_CONNECTIONS} AND datname = current_database()) AS locks"
    assert await look.fetchval(others) == 17
    end = time.monotonic() + 3.0
    everyone = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    while (found := await look.fetchval(everyone)) != 17:
        assert time.monotonic() < end, f"{found} connections"
        await asyncio.sleep(0.01)


async def test_the_lock_connection_holds_back_nothing(join: Join, look: Connection) -> None:
    members = [join("a"), join("b")]
    for member in members:
        await member.tend()
    await eventually(lambda: shared_out(members))
    seen = 0
    end = time.monotonic() + 1.2
    while time.monotonic() < end:
        rows = await look.fetch(
            "SELECT backend_xmin, backend_xid, state FROM pg_stat_activity "
            "WHERE application_name LIKE 'quiesce: lanes of %' AND datname = current_database()"
        )
        assert len(rows) == 2
        for row in rows:
            assert row["backend_xid"] is None
            if row["state"] != "active":
                assert row["state"] == "idle in transaction"
                assert row["backend_xmin"] is None
                seen += 1
    assert seen > 20
    # What stays locked for ever would be in the way of whoever changes that table.
    relations = await look.fetchval(
        "SELECT array_agg(DISTINCT relation::regclass::text) FROM pg_locks JOIN pg_stat_activity USING (pid) "
        "WHERE locktype = 'relation' AND application_name LIKE 'quiesce: lanes of %' AND datname = current_database()"
    )
    assert relations == ["pg_locks"]


async def test_the_table_can_be_changed_and_vacuumed_while_lanes_are_held(join: Join, look: Connection) -> None:
    member = join()
    await member.tend()
    await look.execute("SET lock_timeout = '2s'; ALTER TABLE outbox_lane ADD COLUMN extra int")
    await look.execute("VACUUM FULL outbox_lane")
    await look.execute("CREATE INDEX CONCURRENTLY extra ON outbox_event (created_at)")
    assert member.held.keys() == ALL
    assert member.losses == []


async def test_epochs_rise_with_every_owner(join: Join, look: Connection) -> None:
    first = join("first")
    await first.tend()
    before = dict(first.held)
    await first.close(within(2.0))
    second = join("second")
    await second.tend()
    assert second.held == {lane: epoch + 1 for lane, epoch in before.items()}
    moved = await look.execute("UPDATE outbox_lane SET last = 5 WHERE lane = 3 AND epoch = $1", before[3])
    assert moved == "UPDATE 0", "a stale owner moves nothing"


async def test_lanes_that_are_being_read_are_given_up_afterwards(join: Join) -> None:
    old, new = join("old"), join("new")
    old.reading = set(ALL)
    await old.tend()
    await new.tend()
    await eventually(lambda: len(old.wants_rid_of) == 8)
    await asyncio.sleep(0.3)  # several rounds
    assert (len(old.held), new.held) == (16, {})
    last = old.wants_rid_of
    # The lane that is given up next is the one that was locked last; the others follow it.
    old.reading -= last
    await eventually(lambda: new.held.keys() == last)
    assert old.held.keys() == ALL - last


async def test_the_caller_lets_go(join: Join) -> None:
    old, new = join("old", asks=True), join("new", asks=True)
    await old.tend()
    await new.tend()
    await eventually(lambda: len(old.wants_rid_of) == 8)
    for lane in sorted(old.wants_rid_of):
        epoch = old.held[lane]
        await old.let_go([lane])
        assert lane not in old.held
        assert epoch == 1
    await eventually(lambda: shared_out([old, new]))
    assert old.wants_rid_of == frozenset()
    assert set(new.held.values()) == {2}


async def test_a_lane_that_was_let_go_within_the_share_comes_back_with_another_epoch(join: Join) -> None:
    member = join(asks=True)
    await member.tend()
    before = dict(member.held)
    await member.let_go([3, 7])
    await eventually(lambda: member.held.keys() == ALL)
    assert {lane for lane in ALL if member.held[lane] != before[lane]} == {3, 7}


async def test_outboxes_in_two_schemas_and_in_two_databases_do_not_meet(
    join: Join, database: str, database_template: str, look: Connection, postgres: PostgresAddress
) -> None:
    await look.execute(f"CREATE SCHEMA other; SET search_path = other; {schema.show()}")
    # Made from one template, so the tables have the same numbers.
    name = f"{database.rpartition('/')[2]}_copy"
    copy = postgres.create_database(name, database_template)
    try:
        ways = (database, f"{database}?options=-csearch_path%3Dother", copy)
        members = [join(dsn=way) for way in ways]
        for member in members:
            await member.tend()
        await asyncio.sleep(0.7)  # a count of members and several rounds
        assert [len(member.held) for member in members] == [16, 16, 16]
        await members[-1].close(within(2.0))
    finally:
        postgres.drop_database(name)


async def test_the_databases_own_time_limits_do_not_end_ownership(
    join: Join, database: str, postgres: PostgresAddress
) -> None:
    name = database.rpartition("/")[2]
    limits = ["idle_in_transaction_session_timeout", "idle_session_timeout"]
    if float(postgres.server_version()) >= 17:
        limits.append("transaction_timeout")
    for limit in limits:
        postgres.execute(f"ALTER DATABASE {name} SET {limit} = '300ms'")
    member = join()
    await member.tend()
    await asyncio.sleep(1.0)
    assert member.held.keys() == ALL
    assert member.losses == []


async def test_tend_returns_at_once_when_ownership_is_fresh(join: Join) -> None:
    member = join()
    await member.tend()
    began = time.monotonic()
    for _ in range(1000):
        await member.tend()
    assert time.monotonic() - began < 1.0


async def test_refusals(join: Join, bare: str, database: str) -> None:
    with pytest.raises(SchemaMissing, match="quiesce outbox schema"):
        await join(dsn=bare).tend()
    with pytest.raises(SettingsError, match="no_such_database"):
        await join(dsn=database.rpartition("/")[0] + "/no_such_database").tend()
    for wrong in (0, 0.5):
        with pytest.raises(SettingsError, match="takeover_after 0"):
            Lanes(database, takeover_after=wrong, on_lost=lambda _: None)
    member = join()
    assert await member.close(within(1.0)) == 0
    with pytest.raises(IntakeClosed):
        await member.tend()


async def test_a_user_without_the_right_is_told(join: Join, database: str, postgres: PostgresAddress) -> None:
    name = database.rpartition("/")[2]
    role = f"meek_{name}"
    postgres.execute(f"CREATE ROLE {role} LOGIN; GRANT SELECT ON outbox_lane TO {role}", name)
    try:
        member = join(dsn=database.replace("postgres@", f"{role}@"))
        with pytest.raises(SettingsError, match="may not own lanes"):
            await member.tend()
        assert member.held == {}
        async with connect(database) as look:
            end = time.monotonic() + 2.0
            while await look.fetchval(f"SELECT count(*) FROM ({LOCK_CONNECTIONS} AND usename = '{role}') AS left_over"):
                assert time.monotonic() < end
                await asyncio.sleep(0.01)
    finally:
        postgres.execute(f"DROP OWNED BY {role}; DROP ROLE {role}", name)
