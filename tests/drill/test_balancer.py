"""The balancer on real sockets."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable

import pytest
from small_http import SmallReplica, ask, small_replicas

from quiesce.drill.balancer import Balancer

BOUND = 3.0


@contextlib.asynccontextmanager
async def balancing(*replicas: SmallReplica, probe_every: float = 0.02) -> AsyncIterator[Balancer]:
    balancer = Balancer(probe_every=probe_every, probe_timeout=0.2)
    await balancer.start()
    for replica in replicas:
        balancer.add(replica.name, "127.0.0.1", replica.port)
    try:
        async with asyncio.timeout(BOUND):
            for replica in replicas:
                await balancer.until_ready(replica.name)
        yield balancer
    finally:
        await balancer.close()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(BOUND):
        while not holds():
            await asyncio.sleep(0.005)


async def test_ready_replicas_get_connections_in_turn() -> None:
    async with small_replicas("a", "b") as replicas, balancing(*replicas) as balancer:
        answers = Counter([(await ask(balancer.port))[1] for _ in range(20)])

        assert answers == {"a": 10, "b": 10}


async def test_follows_readiness_out_and_in_again() -> None:
    async with small_replicas("a", "b") as (a, b), balancing(a, b) as balancer:
        a.ready = False
        await until(lambda: not _eligible(balancer, "a"))
        assert {(await ask(balancer.port))[1] for _ in range(6)} == {"b"}

        a.ready = True
        await until(lambda: _eligible(balancer, "a"))
        assert {(await ask(balancer.port))[1] for _ in range(6)} == {"a", "b"}
        assert b.requests


async def test_nobody_ready_is_said_at_once() -> None:
    async with small_replicas("a") as (a,), balancing(a) as balancer:
        a.ready = False
        await until(lambda: not _eligible(balancer, "a"))

        assert await ask(balancer.port) == (503, "no replica is ready")


async def test_refused_connect_goes_to_another_replica() -> None:
    async with small_replicas("a", "b") as (a, b), balancing(a, b) as balancer:
        a.refuse()

        answers = [await ask(balancer.port) for _ in range(10)]

        assert answers == [(200, "b")] * 10
        # The first refusal is enough to know; or a probe was quicker.
        assert balancer.retried <= 1


async def test_a_replica_taken_out_gets_no_new_connection_and_finishes_the_open_one() -> None:
    async with small_replicas("a", "b") as (a, b), balancing(a, b) as balancer:
        a.hold.clear()
        b.hold.clear()
        open_ones = [asyncio.create_task(ask(balancer.port)) for _ in range(2)]
        await until(lambda: len(a.requests) == len(b.requests) == 1)
        b.hold.set()

        balancer.take_out("a")
        later = [await ask(balancer.port) for _ in range(8)]
        a.hold.set()

        assert later == [(200, "b")] * 8
        assert sorted(await asyncio.gather(*open_ones)) == [(200, "a"), (200, "b")]
        assert len(a.requests) == 1


async def test_no_request_is_lost_while_replicas_are_swapped_under_load() -> None:
    async with small_replicas("a", "b", "c") as (a, b, c), balancing(a, b) as balancer:
        swapped = asyncio.Event()
        answers: list[tuple[int, str]] = []

        async def client() -> None:
            while not swapped.is_set():
                answers.append(await ask(balancer.port))

        clients = [asyncio.create_task(client()) for _ in range(8)]
        await until(lambda: len(answers) > 50)
        balancer.add("c", "127.0.0.1", c.port)
        await balancer.until_ready("c")
        balancer.take_out("a")
        backend = balancer.backend("a")
        assert backend is not None
        await until(lambda: not backend.connections)
        a.refuse()
        seen = len(answers)
        await until(lambda: len(answers) > seen + 50)
        swapped.set()
        await asyncio.gather(*clients)

        assert {status for status, _ in answers} == {200}
        assert {name for _, name in answers} == {"a", "b", "c"}


async def test_a_kill_explains_what_was_open_and_nothing_else() -> None:
    async with small_replicas("a", "b") as (a, b), balancing(a, b) as balancer:
        a.hold.clear()
        open_ones = {str(n): asyncio.create_task(ask(balancer.port, str(n))) for n in range(8)}
        await until(lambda: len(a.requests) == 4 and len(b.requests) == 4)

        connections = balancer.note_kill("a")
        a.refuse()
        a.cut()
        outcomes = dict(zip(open_ones, await asyncio.gather(*open_ones.values(), return_exceptions=True), strict=True))
        after = [await ask(balancer.port, f"later-{n}") for n in range(6)]

        cut = {number for number, outcome in outcomes.items() if isinstance(outcome, ConnectionError)}
        assert len(cut) == connections == 4
        assert balancer.excused == cut
        # A connect that the dead one refuses goes to the other and needs no excuse.
        assert after == [(200, "b")] * 6


async def test_what_a_dead_replica_refuses_is_excused_when_nobody_else_is_there() -> None:
    # One probe finds it ready, and the next one is far away.
    async with small_replicas("a") as (a,), balancing(a, probe_every=60) as balancer:
        balancer.note_kill("a")
        a.refuse()

        assert await ask(balancer.port, "before it is noticed") == (503, "no replica took it")
        assert await ask(balancer.port, "after") == (503, "no replica is ready")
        assert balancer.excused == {"before it is noticed"}


async def test_a_refused_request_that_another_replica_took_has_no_excuse_left() -> None:
    async with small_replicas("a", "b") as (a, b), balancing(a, b, probe_every=60) as balancer:
        balancer.note_kill("a")
        a.refuse()

        assert [await ask(balancer.port, str(n)) for n in range(4)] == [(200, "b")] * 4
        assert (balancer.retried, balancer.excused) == (1, set())


async def test_a_silent_replica_gets_nothing_while_another_is_ready() -> None:
    async with small_replicas("a", "b") as (a, b), balancing(a, b) as balancer:
        a.silent = True
        await until(lambda: not _eligible(balancer, "a"))

        assert {(await ask(balancer.port))[1] for _ in range(6)} == {"b"}


async def test_a_slow_replica_is_better_than_none() -> None:
    async with small_replicas("a") as (a,), balancing(a) as balancer:
        a.silent = True
        await until(lambda: not _eligible(balancer, "a"))

        assert await ask(balancer.port) == (200, "a")


async def test_large_bodies_pass_both_ways() -> None:
    async with small_replicas("a") as (a,), balancing(a) as balancer:
        a.name = "x" * 3_000_000

        status, answer = await ask(balancer.port, body=b"y" * 3_000_000)

        assert (status, len(answer)) == (200, 3_000_000)


async def test_close_leaves_no_task_behind() -> None:
    async with small_replicas("a") as (a,), balancing(a) as balancer:
        a.hold.clear()
        asking = asyncio.create_task(ask(balancer.port))
        await until(a.came.is_set)
        await balancer.close()

        with pytest.raises(ConnectionError):
            await asking
    await until(lambda: not [task for task in asyncio.all_tasks() if task.get_name().startswith(("probe", "dial"))])


def _eligible(balancer: Balancer, name: str) -> bool:
    backend = balancer.backend(name)
    return backend is not None and backend.eligible
