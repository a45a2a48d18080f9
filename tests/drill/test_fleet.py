"""The fleet with real processes: a small service stands in for the order service."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from small_http import ask

from quiesce.drill.balancer import Balancer
from quiesce.drill.fleet import Fleet
from quiesce.drill.replica import Recipe
from quiesce.drill.scenario import perform, rolling_update, sigkill
from quiesce.errors import StartError

HERE = Path(__file__).parent


class Scene:
    """A fleet behind a balancer, and clients that ask all the time."""

    def __init__(self, target: str | tuple[str, ...], logs: Path | None, start_bound: float) -> None:
        self.balancer = Balancer(probe_every=0.05)
        self.told: list[str] = []
        recipe = Recipe("r", target, {"PYTHONPATH": str(HERE)})
        self.fleet = Fleet(
            recipe,
            self.balancer,
            prestop=0.2,
            grace_period=8,
            start_bound=start_bound,
            logs=logs,
            tell=self.told.append,
        )
        self.answers: list[tuple[int, str]] = []
        self.cut: list[str] = []
        self._asking = True

    async def client(self, number: int) -> None:
        turn = 0
        while self._asking:
            turn += 1
            request = f"{number}-{turn}"
            try:
                self.answers.append(await ask(self.balancer.port, request))
            except ConnectionError:
                self.cut.append(request)

    def quiet(self) -> None:
        self._asking = False


@contextlib.asynccontextmanager
async def scene(
    target: str | tuple[str, ...] = "standin_services:standin", logs: Path | None = None, start_bound: float = 60.0
) -> AsyncIterator[Scene]:
    made = Scene(target, logs, start_bound)
    await made.balancer.start()
    try:
        yield made
    finally:
        made.quiet()
        await made.fleet.close()
        await made.balancer.close()


async def test_rolling_update_under_load_fails_no_request() -> None:
    async with scene() as s:
        first, second = await asyncio.gather(s.fleet.add(), s.fleet.add())
        pids = [first.process.pid, second.process.pid]
        clients = [asyncio.create_task(s.client(number)) for number in range(4)]
        steps: list[str] = []
        await perform(rolling_update(2), s.fleet, steps.append)
        s.quiet()
        await asyncio.gather(*clients)
        await s.fleet.stop_all("end")

        assert steps == ["rolling update 1 of 2", "rolling update 2 of 2", "steady load"]
        assert s.cut == []
        assert {status for status, _ in s.answers} == {200}
        # Old and new ones served.
        assert len({port for _, port in s.answers}) == 4
        ends = [(end.replica, end.reason, end.exit_code) for end in s.fleet.shutdowns]
        assert sorted(ends[:2]) == [("r-1", "rolling update", 0), ("r-2", "rolling update", 0)]
        assert sorted(ends[2:]) == [("r-3", "end", 0), ("r-4", "end", 0)]
        for end in s.fleet.shutdowns:
            assert end.budget == pytest.approx(7.3)
            assert 0 < end.seconds < 7.3
            assert "http" in end.parts
        assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)
        assert (s.fleet.replicas, s.fleet.problems) == ([], [])


async def test_sigkill_cuts_only_what_was_open_to_it() -> None:
    async with scene() as s:
        await asyncio.gather(s.fleet.add(), s.fleet.add())
        doomed = s.fleet.replicas[0]
        hanging = {str(n): asyncio.create_task(ask(s.balancer.port, str(n), path="/hang")) for n in range(4)}
        backends = [s.balancer.backend(replica.name) for replica in s.fleet.replicas]
        async with asyncio.timeout(5):
            while [len(backend.connections) for backend in backends if backend] != [2, 2]:
                await asyncio.sleep(0.01)
        explained = {splice.request for splice in backends[0].connections} if backends[0] else set()
        clients = [asyncio.create_task(s.client(number)) for number in range(4)]
        async with asyncio.timeout(5):
            while len(s.answers) < 20:
                await asyncio.sleep(0.01)

        await perform(sigkill(), s.fleet, lambda step: None)
        s.quiet()
        await asyncio.gather(*clients)
        cut, still = await asyncio.wait(hanging.values(), timeout=0.1)

        assert {number for number, task in hanging.items() if task in cut} == explained
        assert all(isinstance(task.exception(), ConnectionError) for task in cut)
        assert explained | set(s.cut) <= s.balancer.excused
        assert {status for status, _ in s.answers} == {200}
        (kill,) = s.fleet.kills
        assert kill.replica == doomed.name
        assert kill.connections >= 2
        for task in still:
            task.cancel()
        await asyncio.wait(still)
        await s.fleet.stop_all("end")
        # The killed one has no shutdown: it was not asked.
        assert [end.exit_code for end in s.fleet.shutdowns] == [0, 0]
        assert kill.replica not in {end.replica for end in s.fleet.shutdowns}


async def test_before_a_replica_is_taken_away_or_replaced_it_waits_for_what_is_to_settle() -> None:
    async with scene() as s:
        seen: list[list[str]] = []

        async def settle() -> None:
            seen.append([f"{replica.name} {replica.state}" for replica in s.fleet.replicas])

        s.fleet.settle = settle
        await s.fleet.add()
        await perform([*rolling_update(1), *sigkill()], s.fleet, lambda step: None)

    # Once the new one is ready, beside preStop; before the kill; before the killed one is replaced, which may be gone
    # from the fleet by then.
    assert [seen[0], seen[1]] == [["r-1 preStop", "r-2 serving"], ["r-2 serving"]]
    assert seen[2] in ([], ["r-2 killed"])
    assert len(seen) == 3


async def test_a_replica_that_ends_by_itself_is_a_problem() -> None:
    async with scene() as s:
        replica = await s.fleet.add()
        await _request(replica.port, "/die")
        async with asyncio.timeout(5):
            while not s.fleet.shutdowns:
                await asyncio.sleep(0.02)

        assert (replica.state, s.fleet.replicas) == ("died", [])
        assert s.fleet.shutdowns[0].exit_code == 3
        assert s.fleet.problems[0].startswith("r-1 ended by itself")


async def test_a_replica_that_leaves_work_behind_tells_why_and_its_log_is_kept() -> None:
    async with scene("standin_services:stubborn") as s:
        replica = await s.fleet.add()
        await asyncio.to_thread(replica.process.wait_for, "begun")
        await s.fleet.stop_all("end")

        (end,) = s.fleet.shutdowns
        assert (end.exit_code, end.clean) == (75, False)
        assert "1 iteration (clock)" in end.why
        assert end.log is not None
        try:
            assert "shutdown report" in end.log.read_text()
            assert end.fault() == f"r-1 ended with status 75 (end): {end.why}; its log is {end.log}"
        finally:
            end.log.unlink()


async def test_asked_for_every_log_is_kept_also_of_one_that_was_killed(tmp_path: Path) -> None:
    async with scene(logs=tmp_path) as s:
        first, second = await asyncio.gather(s.fleet.add(), s.fleet.add())
        await s.fleet.kill(first)
        await s.fleet.retire(second, "end", prestop=0)

    kept = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert sorted(kept) == ["r-1.log", "r-2.log"]
    assert ["shutdown report" in kept[name] for name in ("r-1.log", "r-2.log")] == [False, True]
    assert "running" in kept["r-1.log"]


async def test_a_replica_that_cannot_start_is_told_with_its_own_words() -> None:
    async with scene("standin_services:broken") as s:
        with pytest.raises(StartError, match=r"r-1 ended before it was ready.*this one never starts"):
            await s.fleet.add()

        assert s.fleet.replicas == []


async def test_a_replica_that_never_gets_ready_is_told_with_its_bound_and_is_gone() -> None:
    async with scene(("sleep", "50"), start_bound=0.5) as s:
        adding = asyncio.create_task(s.fleet.add())
        async with asyncio.timeout(5):
            while not s.fleet.replicas:
                await asyncio.sleep(0.001)
        pid = s.fleet.replicas[0].process.pid
        with pytest.raises(StartError, match=r"^r-1 was not ready after 0\.5 s.*it wrote nothing"):
            await adding

        assert s.fleet.replicas == []
        assert not os.path.exists(f"/proc/{pid}")


async def test_a_retirement_goes_on_when_its_caller_is_cancelled_and_is_not_begun_twice() -> None:
    """A second SIGTERM would make the replica give up its work."""
    async with scene() as s:
        replica = await s.fleet.add()
        slow = asyncio.create_task(_request(replica.port, "/slow"))
        retiring = asyncio.create_task(s.fleet.retire(replica, "first"))
        async with asyncio.timeout(5):
            while replica.state != "stopping":
                await asyncio.sleep(0.01)
        retiring.cancel()
        await s.fleet.stop_all("second")
        await slow

        assert [(end.reason, end.exit_code) for end in s.fleet.shutdowns] == [("first", 0)]
        assert s.told.count("r-1 gets SIGTERM") == 1


async def test_cancelled_while_it_starts_a_replica_is_stopped_with_the_others() -> None:
    async with scene() as s:
        adding = asyncio.create_task(s.fleet.add())
        async with asyncio.timeout(5):
            while not s.told:
                await asyncio.sleep(0.001)
        adding.cancel()
        await s.fleet.stop_all("end")

        assert s.fleet.replicas == []
        assert [end.replica for end in s.fleet.shutdowns] == ["r-1"]


async def test_close_kills_at_once_and_leaves_no_file() -> None:
    async with scene() as s:
        replica = await s.fleet.add()
        pid, log = replica.process.pid, replica.process.log
        await s.fleet.close()

        assert not os.path.exists(f"/proc/{pid}")
        assert not log.parent.exists()
        assert s.fleet.shutdowns == []


async def test_close_waits_for_no_prestop() -> None:
    async with scene() as s:
        replica = await s.fleet.add()
        retiring = asyncio.create_task(s.fleet.retire(replica, "end", prestop=30))
        async with asyncio.timeout(5):
            while replica.state != "preStop":
                await asyncio.sleep(0.01)
        async with asyncio.timeout(15):
            await s.fleet.close()
        await asyncio.wait({retiring})

        assert retiring.cancelled()
        assert s.fleet.shutdowns == []


async def _request(port: int, path: str) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    async with asyncio.timeout(5):
        await reader.read(-1)
    writer.close()
