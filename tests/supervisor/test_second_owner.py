"""S12 and S13 with somebody who takes over: a job whose owner looks dead is run by another one, on a real database."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from quiesce import Budget, Service, Stop, critical, running, service

BUDGET = Budget(grace_period=14, prestop=0, http=1, workers=6, producers=1, pools=2, report=0.5, margin=0.5)

JOBS = """
create table job (
    id int primary key, owner text, beat timestamptz, runs int not null default 0, done boolean not null default false
);
insert into job (id) values (1), (2);
"""
LEASE = 1.0
"""Seconds without a heartbeat after which an owner is taken for dead."""
TAKE = f"""
update job set owner = $1, beat = clock_timestamp(), runs = runs + 1 where id = (
    select id from job
    where not done and (beat is null or beat < clock_timestamp() - interval '{LEASE} s')
    order by id for update skip locked limit 1
) returning id
"""
BEAT = "update job set beat = clock_timestamp() where owner = $1 and not done"
DONE = "update job set done = true where id = $1 and owner = $2"


async def until(condition: Any, within: float = 10.0) -> None:
    async with asyncio.timeout(within):
        while not condition():
            await asyncio.sleep(0.01)


class SecondOwner:
    """Looks for jobs of the dead all the time, and takes them."""

    def __init__(self) -> None:
        self.taken: list[int] = []
        self.looks = 0

    async def run(self, db: asyncpg.Connection) -> None:
        while True:
            job = await db.fetchval(TAKE, "the other one")
            self.looks += 1
            if job is not None:
                self.taken.append(job)
            await asyncio.sleep(0.05)

    async def looked(self, times: int) -> None:
        so_far = self.looks
        await until(lambda: self.looks >= so_far + times)


@asynccontextmanager
async def second_owner(database: str) -> AsyncIterator[SecondOwner]:
    db = await asyncpg.connect(database)
    other = SecondOwner()
    looking = asyncio.create_task(other.run(db))
    try:
        yield other
    finally:
        looking.cancel()
        await asyncio.wait({looking}, timeout=5)
        await db.close()


async def one_job(database: str) -> None:
    db = await asyncpg.connect(database)
    await db.execute(JOBS)
    await db.execute("delete from job where id = 2")
    await db.close()


@pytest.mark.parametrize("keeps", ["payments", None])
async def test_s12_nobody_takes_a_job_over_while_its_owner_drains(database: str, keeps: str | None) -> None:
    await one_job(database)
    began: list[int] = []

    @asynccontextmanager
    async def pool() -> AsyncIterator[asyncpg.Pool]:
        async with asyncpg.create_pool(database, min_size=1, max_size=4) as made:
            yield made

    async def heartbeat(db: asyncpg.Pool) -> None:
        await db.execute(BEAT, "us")

    async def payments(stop: Stop, db: asyncpg.Pool) -> None:
        job = await db.fetchval(TAKE, "us")
        began.append(job)
        await stop.wait()
        # In the drain, for longer than anybody would wait for a heartbeat.
        await asyncio.sleep(2.5 * LEASE)
        await db.execute(DONE, job, "us")

    @service("payments", budget=BUDGET)
    async def start(s: Service) -> None:
        db = await s.open(pool(), name="pool")
        s.every(0.1, heartbeat, db, keeps=keeps)
        s.loop(payments, db)

    async with running(start) as s:
        await until(lambda: began == [1])
        async with second_owner(database) as other:
            report = await s.stop()
            await other.looked(3)
            taken = other.taken
    assert report.exit_code == 0
    db = await asyncpg.connect(database)
    [job] = await db.fetch("select runs, done, owner from job")
    await db.close()
    if keeps is None:
        # So it is the edge that does it: without it the owner looked dead, and the job was run twice.
        assert taken == [1, *taken[1:]]
        assert job["runs"] >= 2
    else:
        assert taken == []
        assert tuple(job) == (1, True, "us")


@pytest.mark.parametrize("keeps", [["one", "two"], None])
async def test_s13_a_task_that_ends_well_in_the_drain_is_acked_and_not_run_again(
    database: str, keeps: list[str] | None
) -> None:
    db = await asyncpg.create_pool(database, min_size=1, max_size=3)
    await db.execute(JOBS)
    began: list[int] = []
    unacked: list[int] = []

    class Channel:
        """A connection of its own, as a broker has it: acks go by it, and when it is closed there is none."""

        def __init__(self) -> None:
            self._acks: asyncio.Queue[tuple[int, asyncio.Future[bool]]] = asyncio.Queue()
            self._open = True

        async def ack(self, task: int) -> bool:
            answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
            if not self._open:
                return False
            self._acks.put_nowait((task, answer))
            return await answer

        async def run(self, stop: Stop) -> None:
            connection = await asyncpg.connect(database)
            try:
                while (ack := await stop.or_stop(self._acks.get())) is not None:
                    await connection.execute(DONE, ack[0], "us")
                    ack[1].set_result(True)
            finally:
                self._open = False
                await connection.close()

    channel = Channel()

    async def whole(task: int) -> None:
        await asyncio.sleep(0.5)  # it ends well, in the drain
        if not await channel.ack(task):
            unacked.append(task)

    async def tasks(stop: Stop) -> None:
        async for _ in stop.every(30):
            task = await db.fetchval(TAKE, "us")
            began.append(task)
            await stop.wait()
            await critical("task and ack", whole, task)

    @service("tasks", budget=BUDGET)
    async def start(s: Service) -> None:
        s.loop(channel.run, name="channel", keeps=keeps)
        s.loop(tasks, name="one")
        s.loop(tasks, name="two")

    async with running(start) as s:
        await until(lambda: sorted(began) == [1, 2])
        report = await s.stop()
    assert report.exit_code == 0
    # Time passes, and another worker comes.
    await db.execute("update job set beat = beat - interval '1 hour'")
    async with second_owner(database) as other:
        await other.looked(5)
        taken = other.taken
    runs = [row["runs"] for row in await db.fetch("select runs from job order by id")]
    await db.close()
    if keeps is None:
        # So it is the edge that does it: the channel had gone, and what was done was done again.
        assert sorted(unacked) == [1, 2]
        assert sorted(taken) == [1, 2]
        assert runs == [2, 2]
    else:
        assert unacked == []
        assert taken == []
        assert runs == [1, 1]
