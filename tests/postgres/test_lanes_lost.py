"""Losing the connection that holds the locks, and being cancelled or closed at any moment."""

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable

import pytest
from cancelled_at import CancelledAt
from lane_members import ALL, END_LOCKS, Join, Member, eventually, shared_out, tending
from wire_proxy import WireProxy

from quiesce.errors import IntakeClosed, Unavailable
from quiesce.postgres import connect
from quiesce.postgres.driver import Connection
from quiesce.postgres.lane_records import LaneRecords, PooledConnector
from quiesce.testing.contracts.expectations import within
from quiesce.testing.loopback import free_port
from quiesce.testing.postgres import LocalPostgres

LOCK_SESSIONS = (
    "SELECT state_change FROM pg_stat_activity WHERE application_name LIKE 'quiesce: lanes of %' "
    "AND datname = current_database()"
)
ADVISORY = (
    "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' "
    "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)


async def nothing_locked(look: Connection, bound: float = 3.0) -> None:
    end = time.monotonic() + bound
    while await look.fetchval(ADVISORY):
        assert time.monotonic() < end
        await asyncio.sleep(0.005)


async def test_a_cut_connection_is_told_and_its_lanes_come_back(join: Join, database: str) -> None:
    async with WireProxy(database) as proxy:
        member = join(dsn=proxy.dsn)
        await member.tend()
        before = dict(member.held)
        proxy.cut()
        await eventually(lambda: not member.held)
        await eventually(lambda: member.losses == [ALL])
        await tending([member], lambda: member.held.keys() == ALL)
        assert member.held == {lane: epoch + 1 for lane, epoch in before.items()}
        assert await member.close(within(2.0)) == 0
    assert member.losses == [ALL]


async def test_a_session_that_the_server_ends_is_told(join: Join, look: Connection) -> None:
    member = join()
    await member.tend()
    await look.execute(END_LOCKS)
    await eventually(lambda: not member.held)
    await eventually(lambda: member.losses == [ALL])
    # Nobody tends: a store that does not claim needs no lanes.
    await nothing_locked(look)
    await member.tend()
    assert member.held.keys() == ALL
    # The death of a connection says nothing about the server: whoever calls just then hears of no outage.
    for _ in range(3):
        await look.execute(END_LOCKS)
        await eventually(lambda: not member.held)
        await member.tend()
        assert member.held.keys() == ALL


async def test_an_epoch_is_raised_only_on_the_server_where_the_lock_is_held(
    join: Join, database: str, look: Connection
) -> None:
    member = join()
    await member.tend()
    assert member._locks is not None
    records = LaneRecords(PooledConnector(), database, "other", connect_timeout=2.0, statement_timeout=2.0)
    nobodys = member._locks.badge - 1
    with pytest.raises(Unavailable, match="lane 3, 4 could not be owned"):
        await records.own(nobodys, [3, 4])
    rows = await look.fetch("SELECT lane, epoch FROM outbox_lane")
    assert member.held == {row["lane"]: row["epoch"] for row in rows}
    assert await records.own(member._locks.badge, [3]) == {3: member.held[3] + 1}


async def test_a_silent_line_is_given_up(join: Join, database: str) -> None:
    async with WireProxy(database) as proxy:
        member = join(dsn=proxy.dsn, statement_timeout=0.3, connect_timeout=0.3)
        peer = join("peer")
        await member.tend()
        proxy.freeze()
        await eventually(lambda: not member.held, 4.0)
        await eventually(lambda: member.losses == [ALL])
        began = time.monotonic()
        with pytest.raises(Unavailable, match="did not answer"):
            await member.tend()
        assert time.monotonic() - began < 3.0
        proxy.thaw()
        await tending([member, peer], lambda: shared_out([member, peer]))


async def test_close_on_a_silent_line_is_bounded(join: Join, database: str, look: Connection) -> None:
    async with WireProxy(database) as proxy:
        member = join(dsn=proxy.dsn)
        await member.tend()
        proxy.freeze()
        await asyncio.sleep(0.2)  # so that a statement is under way
        began = time.monotonic()
        await member.close(within(0.5))
        assert time.monotonic() - began < 2.0
        assert member.held == {}
        assert await member.close(within(0.5)) in (0, 1)
        assert member.losses == []
        proxy.thaw()
        await nothing_locked(look)


async def test_close_while_nobody_answers_the_connecting(join: Join) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        member = join(dsn=f"postgresql://me@127.0.0.1:{silent.getsockname()[1]}/db")
        tended = asyncio.create_task(member.tend())
        await asyncio.sleep(0.1)  # it connects, or will
        began = time.monotonic()
        assert await member.close(within(3.0)) == 0
        assert time.monotonic() - began < 1.5
        with pytest.raises(IntakeClosed):
            await tended


async def test_nobody_listens(join: Join) -> None:
    member = join(dsn=f"postgresql://me@127.0.0.1:{free_port()}/db")
    for _ in range(2):
        with pytest.raises(Unavailable):
            await member.tend()
    assert await member.close(within(1.0)) == 0


async def test_closing_twice_and_side_by_side(join: Join, look: Connection) -> None:
    member = join()
    await member.tend()
    assert await asyncio.gather(*(member.close(within(2.0)) for _ in range(3))) == [0, 0, 0]
    assert await member.close(within(0.0)) == 0
    await nothing_locked(look)


async def test_a_close_that_is_cancelled_leaves_nothing(join: Join, look: Connection) -> None:
    member = join()
    await member.tend()
    await asyncio.wait({asyncio.create_task(_cancelled(member.close(within(5.0))))})
    assert member.held == {}
    await nothing_locked(look)


async def _cancelled(work: Awaitable[object]) -> None:
    waiting = asyncio.ensure_future(work)
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait({waiting})


async def _reaches_its_end(work: CancelledAt) -> bool:
    try:
        await work
    except asyncio.CancelledError:
        return False
    return True


@pytest.mark.parametrize("call", ["tend", "let_go", "close"])
async def test_a_caller_that_is_cancelled_leaves_no_lane_half_owned(
    join: Join, database: str, look: Connection, call: str
) -> None:
    calls: dict[str, Callable[[Member], Awaitable[object]]] = {
        "tend": lambda member: member.tend(),
        "let_go": lambda member: member.let_go([0, 5]),
        "close": lambda member: member.close(within(2.0)),
    }
    for step in range(1, 20):
        member = join(asks=True)
        if call != "tend":
            await member.tend()
        work = CancelledAt(calls[call](member), step)  # type: ignore[arg-type] # each is a coroutine
        ended = await asyncio.create_task(_reaches_its_end(work))
        if call != "close":
            await eventually(lambda: member.held.keys() == ALL)  # noqa: B023 - awaited here
            rows = await look.fetch("SELECT lane, epoch FROM outbox_lane")
            assert member.held == {row["lane"]: row["epoch"] for row in rows}
        await member.close(within(2.0))
        await nothing_locked(look)
        if ended:
            assert step > 1
            return
    pytest.fail("it never came to its end")


async def test_the_task_itself_cancelled_anywhere_frees_everything(join: Join, look: Connection) -> None:
    """As at the end of `asyncio.run`, which cancels what is left."""
    for pause in range(0, 60, 3):
        member = join()
        waiting = asyncio.create_task(_ignoring(member.tend()))
        await asyncio.sleep(0)
        for _ in range(pause):
            await asyncio.sleep(0.0005)
        assert member._task is not None
        member._task.cancel()
        await asyncio.wait({waiting, member._task})
        assert member.held == {}
        await nothing_locked(look)


async def _ignoring(work: Awaitable[object]) -> None:
    try:
        await work
    except (IntakeClosed, Unavailable):
        return


async def test_a_former_owners_row_lock_holds_up_only_its_lane(join: Join, database: str) -> None:
    async with connect(database) as frozen:
        turn = frozen.transaction()
        await turn.start()
        await frozen.execute("UPDATE outbox_lane SET last = last WHERE lane = 3")
        member = join(statement_timeout=0.3)
        await member.tend()
        assert member.held == {}
        await turn.rollback()
        await tending([member], lambda: member.held.keys() == ALL)
        assert member.losses == []


async def test_a_member_that_waits_for_a_row_gives_signs_of_life(join: Join, database: str, look: Connection) -> None:
    async with connect(database) as frozen:
        turn = frozen.transaction()
        await turn.start()
        await frozen.execute("UPDATE outbox_lane SET last = last WHERE lane = 3")
        member = join(statement_timeout=5.0)
        waiting = asyncio.create_task(member.tend())
        signs: set[object] = set()
        end = time.monotonic() + 4.0
        while len(signs) < 4:
            assert time.monotonic() < end
            signs.add(await look.fetchval(f"SELECT max(state_change) FROM ({LOCK_SESSIONS}) AS locks"))
            await asyncio.sleep(0.05)
        assert member.held == {}
        await turn.rollback()
        await waiting
        assert member.held.keys() == ALL


async def test_a_loss_is_told_while_it_waits_for_a_row(join: Join, database: str, look: Connection) -> None:
    member = join(statement_timeout=20.0, asks=True)
    await member.tend()
    async with connect(database) as other:
        turn = other.transaction()
        await turn.start()
        await other.execute("UPDATE outbox_lane SET last = last WHERE lane = 3")
        letting = asyncio.create_task(member.let_go([3]))
        await eventually(lambda: 3 not in member.held)
        await look.execute(END_LOCKS)
        await eventually(lambda: member.losses == [ALL - {3}])
        assert member.held == {}
        async with asyncio.timeout(3.0):
            await letting
        await turn.rollback()
    await tending([member], lambda: member.held.keys() == ALL)


@pytest.mark.xdist_group("own_postgres_lanes")
async def test_a_server_that_restarts(own_postgres: Callable[..., LocalPostgres], join: Join) -> None:
    from quiesce.postgres import schema

    server = own_postgres()
    dsn = server.create_database("outbox")
    server.execute(schema.show(), "outbox")
    members = [join("a", dsn=dsn), join("b", dsn=dsn)]
    for member in members:
        await member.tend()
    await eventually(lambda: shared_out(members))
    await asyncio.to_thread(server.restart, "immediate")
    await eventually(lambda: all(len(member.losses) == 1 for member in members))
    await tending(members, lambda: shared_out(members))
