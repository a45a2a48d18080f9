"""Lanes through a pooler that gives its sessions away between transactions."""

import asyncio
import time

import pytest
from lane_members import ALL, LOCK_CONNECTIONS, Join, eventually, never_two_owners, shared_out, tending
from pgbouncer import OpenPgBouncer

from quiesce.errors import SettingsError
from quiesce.postgres import connect
from quiesce.postgres.driver import Connection
from quiesce.testing.contracts.expectations import within

pytestmark = pytest.mark.xdist_group("pgbouncer")


async def test_o27_session_locks_have_two_owners_here_and_ours_have_one(
    pgbouncer: OpenPgBouncer, join: Join, database: str
) -> None:
    # One session at the server for everybody.
    way = pgbouncer(default_pool_size="1").dsn(database)
    async with connect(way) as one, connect(way) as two:
        # What a lock by the session is worth here: both hold it.
        for relay in (one, two):
            rows = await relay.execute("SELECT 1 WHERE pg_try_advisory_lock(27)")
            assert rows == "SELECT 1"
        await one.execute("SELECT pg_advisory_unlock_all()")
    # Ours takes the session for itself.
    way = pgbouncer().dsn(database)
    members = [join("one", dsn=way), join("two", dsn=way), join("direct")]
    async with never_two_owners(members):
        for member in members:
            await member.tend()
        took = await eventually(lambda: shared_out(members))
        print(f"three members: {took:.3f} s")
        began = time.monotonic()
        assert await members[0].close(within(2.0)) == 0
        await eventually(lambda: shared_out(members[1:]))
        print(f"leave through PgBouncer: {time.monotonic() - began:.3f} s")
    assert not any(member.losses for member in members)


async def test_the_session_behind_the_pooler_holds_back_nothing(
    pgbouncer: OpenPgBouncer, join: Join, database: str, look: Connection
) -> None:
    member = join(dsn=pgbouncer().dsn(database))
    await member.tend()
    end = time.monotonic() + 1.2
    seen = 0
    while time.monotonic() < end:
        for row in await look.fetch(
            "SELECT backend_xmin, backend_xid FROM pg_stat_activity WHERE state = 'idle in transaction' "
            "AND application_name LIKE 'quiesce: lanes of %' AND datname = current_database()"
        ):
            assert (row["backend_xmin"], row["backend_xid"]) == (None, None)
            seen += 1
    assert seen > 20
    # What a pooler does not pass on when a connection opens is set by the transaction, and ends with it.
    (session,) = await look.fetch(f"{LOCK_CONNECTIONS} AND datname = current_database()")
    assert await look.fetchval("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = $1", *session) == 18


async def test_ordinary_work_goes_on_beside_it_in_the_same_pool(
    pgbouncer: OpenPgBouncer, join: Join, database: str
) -> None:
    bouncer = pgbouncer(default_pool_size="3")
    members = [join("one", dsn=bouncer.dsn(database)), join("two", dsn=bouncer.dsn(database))]
    for member in members:
        await member.tend()
    await eventually(lambda: shared_out(members))
    async with connect(bouncer.dsn(database)) as guest:
        for _ in range(20):
            # Whatever the session, nothing of ours is left in it.
            assert await guest.execute("SELECT 1 FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory'")
            assert await guest.execute("UPDATE outbox_lane SET last = last WHERE lane = 0") == "UPDATE 1"
    assert shared_out(members)


async def test_a_pooler_that_ends_frees_the_lanes(pgbouncer: OpenPgBouncer, join: Join, database: str) -> None:
    bouncer = pgbouncer()
    member, peer = join("pooled", dsn=bouncer.dsn(database)), join("peer")
    await member.tend()
    await peer.tend()
    await eventually(lambda: shared_out([member, peer]))
    began = time.monotonic()
    await asyncio.to_thread(bouncer.__exit__)
    await eventually(lambda: peer.held.keys() == ALL)
    print(f"PgBouncer killed: {time.monotonic() - began:.3f} s")
    await eventually(lambda: len(member.losses) == 1)
    assert member.held == {}


async def test_its_own_time_limits_do_not_end_ownership(pgbouncer: OpenPgBouncer, join: Join, database: str) -> None:
    limits = {"idle_transaction_timeout": "1", "client_idle_timeout": "1", "query_timeout": "2"}
    member = join(dsn=pgbouncer(**limits).dsn(database))
    await member.tend()
    await asyncio.sleep(2.5)
    assert member.held.keys() == ALL
    assert member.losses == []


async def test_session_mode_serves_too(pgbouncer: OpenPgBouncer, join: Join, database: str) -> None:
    way = pgbouncer("session").dsn(database)
    members = [join("one", dsn=way), join("two", dsn=way)]
    await tending(members, lambda: shared_out(members))


async def test_o27_a_pooler_that_keeps_no_transaction_together_is_told_at_the_start(
    pgbouncer: OpenPgBouncer, join: Join, database: str
) -> None:
    member = join(dsn=pgbouncer("statement").dsn(database))
    with pytest.raises(SettingsError, match="transaction or session mode") as told:
        await member.tend()
    assert "\n" not in str(told.value)
    assert member.held == {}
