"""The replicas of one service as real processes, and what an orchestrator does to them."""

import asyncio
import contextlib
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from quiesce.drill.balancer import Balancer
from quiesce.drill.launch import HOST, launch, until_ready
from quiesce.drill.owned_tasks import OwnedTasks
from quiesce.drill.replica import Recipe, Replica, shutdown_of, slowest_worker
from quiesce.drill.verdict import Kill, Shutdown
from quiesce.errors import StartError
from quiesce.testing.loopback import free_port
from quiesce.testing.process import log_tail

_PORT_ATTEMPTS = 3
_WATCH_EVERY = 0.2
_ENDPOINT_LINGERS = 1.0
_GONE_BOUND = 10.0


async def _nothing() -> None:
    pass


class Fleet:
    """Starts, replaces, stops and kills replicas behind a balancer, as Kubernetes does with pods.

    Every replica that ends leaves a `Shutdown` or a `Kill`; one that ends by itself leaves a `Shutdown` and
    a line in `problems`.

    Args:
        prestop: seconds between a replica's leaving the balancer and its SIGTERM.
        grace_period: seconds from the beginning of its deletion to SIGKILL, `prestop` included.
        start_bound: seconds a replica may take until it is ready.
        settle: what is waited for before a replica is taken away, which may make its preStop longer, and before one is
            put into the place of one that was killed. It is bounded.
        logs: a directory that every replica's log is copied to; without one only those are kept, in the directory for
            temporary files, that did not end well.
        tell: gets a line for whatever happens.
    """

    def __init__(
        self,
        recipe: Recipe,
        balancer: Balancer,
        *,
        prestop: float = 2.0,
        grace_period: float = 60.0,
        start_bound: float = 60.0,
        settle: Callable[[], Awaitable[None]] = _nothing,
        logs: Path | None = None,
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._recipe = recipe
        self._balancer = balancer
        self._prestop = prestop
        self._grace_period = grace_period
        self._start_bound = start_bound
        self.settle = settle
        self._logs = logs
        self._tell = tell
        self._made = 0
        self._watching: asyncio.Task[None] | None = None
        self._tasks = OwnedTasks()
        self.replicas: list[Replica] = []
        """Those that are not over yet, oldest first."""
        self.shutdowns: list[Shutdown] = []
        self.kills: list[Kill] = []
        self.problems: list[str] = []

    async def add(self) -> Replica:
        """Starts one more replica and waits until the balancer finds it ready.

        Cancelled, it leaves the replica in the fleet, to be stopped with the others.

        Raises:
            StartError: it ended before that, or was not ready in time; with the end of its log.
        """
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch(), name="watch replicas")
        self._made += 1
        number = self._made
        name = f"{self._recipe.name}-{number}"
        for attempt in range(_PORT_ATTEMPTS):
            began = time.monotonic()
            replica = await self._tasks.run(self._launch(name, number), f"start {name}")
            try:
                await until_ready(replica, self._balancer, self._start_bound)
                break
            except StartError as error:
                await self._tasks.run(self._drop(replica), f"drop {name}")
                # Somebody took the port between our look and the replica's.
                if attempt == _PORT_ATTEMPTS - 1 or "is taken by another process" not in str(error):
                    raise
        replica.state = "serving"
        self._tell(f"{name} is ready after {time.monotonic() - began:.1f} s")
        return replica

    async def retire(self, replica: Replica, reason: str, *, prestop: float | None = None) -> None:
        """Takes a replica down in order: out of the balancer, preStop, SIGTERM, its end awaited.

        Past the grace period it gets SIGKILL. Once begun it goes on, also when the caller is cancelled; who
        asks again waits for the same end.
        """
        if replica.ending is None:
            prestop = self._prestop if prestop is None else prestop
            replica.ending = self._tasks.own(self._retire(replica, reason, prestop), f"retire {replica.name}")
        await asyncio.shield(replica.ending)

    async def replace(self, replica: Replica, reason: str = "rolling update") -> Replica:
        """A new replica, ready, then the old one down: one step of a rolling update."""
        fresh = await self.add()
        await self.retire(replica, reason)
        return fresh

    async def kill(self, replica: Replica) -> None:
        """SIGKILL, with whatever it has in hand. Returns when it is gone; the balancer has to notice by itself."""
        if replica.ending is None:
            # One stretch without an await: what is open now is what the kill explains.
            replica.process.signal(signal.SIGKILL)
            replica.state = "killed"
            connections = self._balancer.note_kill(replica.name)
            self._tell(f"{replica.name} gets SIGKILL with {connections} connections open to it")
            replica.ending = self._tasks.own(self._bury(replica, connections), f"bury {replica.name}")
        await asyncio.shield(replica.ending)

    async def stop_all(self, reason: str) -> None:
        """Takes down what is left, all at once and without preStop: nobody sends anything any more."""
        # A replica that is just being launched joins the fleet first.
        await self._tasks.settle("start ")
        retiring = [self.retire(replica, reason, prestop=0) for replica in list(self.replicas)]
        await asyncio.gather(*retiring)
        await self._tasks.settle()

    async def close(self) -> None:
        """Kills what still runs and deletes what it wrote. Quick; also after `stop_all`, and twice."""
        if self._watching is not None:
            self._watching.cancel()
        await self._tasks.settle("start ")
        await asyncio.gather(*(self._drop(replica) for replica in list(self.replicas)))
        # A preStop that is still slept, a wait for a process that is gone.
        await self._tasks.end()

    async def _launch(self, name: str, number: int) -> Replica:
        port = free_port()
        self._tell(f"{name} starts on port {port}")
        replica = await launch(self._recipe, name, number, port)
        self.replicas.append(replica)
        # Of several that are launched at once, the first that was asked for is the oldest.
        self.replicas.sort(key=lambda replica: replica.number)
        self._balancer.add(name, HOST, port)
        return replica

    async def _retire(self, replica: Replica, reason: str, prestop: float) -> None:
        self._balancer.take_out(replica.name)
        if prestop > 0:
            replica.state = "preStop"
            self._tell(f"{replica.name} is out of the balancer; preStop of {prestop:g} s")
            await asyncio.gather(asyncio.sleep(prestop), self.settle())
            if replica.over:
                return
        replica.state = "stopping"
        began = time.monotonic()
        self._tell(f"{replica.name} gets SIGTERM")
        replica.process.signal(signal.SIGTERM)
        try:
            status = await asyncio.to_thread(replica.process.wait, max(self._grace_period - prestop, 0.0))
        except TimeoutError:
            self.problems.append(f"{replica.name} was still there after its grace period of {self._grace_period:g} s")
            killed = await asyncio.to_thread(replica.process.kill)
            status = 128 + signal.SIGKILL if killed is None else killed
        if not replica.over:
            await self._over(replica, reason, time.monotonic() - began, status)

    async def _bury(self, replica: Replica, connections: int) -> None:
        await asyncio.to_thread(replica.process.kill)
        backend = self._balancer.backend(replica.name)
        self.kills.append(Kill(replica.name, connections, backend.given_when_dead if backend is not None else 0))
        self._tasks.own(self._linger(replica), f"linger {replica.name}")

    async def _linger(self, replica: Replica) -> None:
        # As the endpoint of a dead pod goes some time after the pod: until then its port refuses.
        await asyncio.sleep(_ENDPOINT_LINGERS)
        await self._drop(replica)

    async def _watch(self) -> None:
        """Notices replicas that end by themselves."""
        while True:
            for replica in list(self.replicas):
                if replica.state in ("serving", "preStop") and not replica.process.alive:
                    replica.state = "died"
                    status = await asyncio.to_thread(replica.process.wait, _GONE_BOUND)
                    tail = log_tail(replica.process.log)
                    self.problems.append(f"{replica.name} ended by itself: {tail}")
                    await self._over(replica, "ended by itself", 0.0, status, state="died")
            await asyncio.sleep(_WATCH_EVERY)

    async def _over(
        self, replica: Replica, reason: str, seconds: float, status: int, *, state: str = "stopped"
    ) -> None:
        report = await asyncio.to_thread(replica.process.report)
        # Whoever asks why it did not end well needs more than the verdict's line.
        log = await asyncio.to_thread(replica.process.keep_log, self._kept(replica)) if status != 0 else None
        shutdown = shutdown_of(replica.name, reason, seconds, status, report, log)
        self.shutdowns.append(shutdown)
        budget = f" of {shutdown.budget:g} s" if shutdown.budget is not None else " s, without a report,"
        self._tell(f"{replica.name} {state} in {seconds:.2f}{budget} with status {status}{slowest_worker(report)}")
        await self._drop(replica, state)

    async def _drop(self, replica: Replica, state: str = "killed") -> None:
        replica.state = state
        self._balancer.forget(replica.name)
        with contextlib.suppress(ValueError):
            self.replicas.remove(replica)
        if (kept := self._kept(replica)) is not None:
            await asyncio.to_thread(replica.process.keep_log, kept)
        await asyncio.to_thread(replica.process.discard)

    def _kept(self, replica: Replica) -> Path | None:
        return None if self._logs is None else self._logs / f"{replica.name}.log"
