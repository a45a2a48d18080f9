"""One drill from the first server started to the verdict."""

import asyncio
import threading
import time
from collections.abc import Coroutine
from typing import Any

from quiesce.drill.balancer import Balancer
from quiesce.drill.fleet import Fleet
from quiesce.drill.judging import Played, judge
from quiesce.drill.launch import HOST
from quiesce.drill.load import OrderLoad
from quiesce.drill.picture import take_picture
from quiesce.drill.plan import Plan
from quiesce.drill.probe import partitions
from quiesce.drill.product_load import ProductLoad
from quiesce.drill.scenario import perform
from quiesce.drill.servers import PARTITIONS, Servers
from quiesce.drill.side_by_side import side_by_side
from quiesce.drill.tables import Tables
from quiesce.drill.verdict import Verdict
from quiesce.drill.view import View
from quiesce.errors import QuiesceError

_SHOW_EVERY = 0.5
_LOAD_BOUND = 30.0
_SETTLE_BOUND = 30.0
_ASK_BOUND = 2.0
_ASK_EVERY = 0.2
_DRAIN_BOUND = 30.0
_HURRIED_DRAIN_BOUND = 8.0


async def _at_once() -> None:
    pass


class Drill:
    """Starts everything, plays the scenario under load, stops everything, audits.

    Args:
        stop: set, it ends the drill early and in order; what was done until then is audited.
    """

    def __init__(self, plan: Plan, servers: Servers, view: View, stop: asyncio.Event) -> None:
        self._plan = plan
        self._servers = servers
        self._view = view
        self._stop = stop
        self._played = Played(Balancer(tell=view.tell))
        self._cancelled = threading.Event()
        self._background: set[asyncio.Task[None]] = set()

    async def run(self) -> Verdict:
        """Returns when nothing that it started is left.

        Raises:
            QuiesceError: the servers or the first replicas could not start.
        """
        self._spawn(self._announce_stop(), "announce")
        try:
            await self._until_stopped(self._perform())
            await self._wind_down()
            self._at_step("audit")
            return await judge(self._plan, self._servers, self._played, self._view, self._cancelled)
        finally:
            self._cancelled.set()
            # In a task of its own: whoever cancels us a second time must not tear it.
            await asyncio.shield(asyncio.create_task(self._close(), name="close"))

    async def _until_stopped(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs the work until it is over or a stop is requested. Once load has begun, its failure is a problem
        to be told with the audit."""
        working = asyncio.create_task(work, name="scenario")
        stopping = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
            self._played.interrupted = not working.done()
        finally:
            stopping.cancel()
            working.cancel()
            await asyncio.wait({working})
        if working.cancelled():
            return
        try:
            working.result()
        except QuiesceError as error:
            if self._played.load is None:
                raise
            self._played.problems.append(str(error))

    async def _perform(self) -> None:
        plan = self._plan
        await self._servers.start()
        self._played.tables = Tables(self._servers.dsn)
        await self._played.balancer.start()
        self._played.fleet = fleet = Fleet(
            plan.recipe(self._servers),
            self._played.balancer,
            prestop=plan.prestop,
            settle=self._settle if plan.settles else _at_once,
            logs=plan.logs,
            tell=self._view.tell,
        )
        await side_by_side(*(fleet.add() for _ in range(plan.replicas)))
        self._played.load = load = OrderLoad(
            f"http://127.0.0.1:{self._played.balancer.port}/orders", plan.rate, self._played.ledger
        )
        self._view.tell(f"{plan.rate:g} orders a second to the balancer on port {self._played.balancer.port}")
        cpu = time.process_time()
        self._spawn(load.run(), "load")
        self._played.products = products = ProductLoad(
            self._servers.bootstrap, self._servers.topics[plan.product_topic]
        )
        self._spawn(products.run(), "products")
        self._spawn(self._played.tables.watch(), "backlog")
        self._spawn(self._show(), "view")
        began = time.monotonic()
        try:
            await perform(plan.steps, fleet, self._at_step)
            await asyncio.sleep(max(0.0, began + plan.seconds - time.monotonic()))
        finally:
            self._played.cpu = (time.process_time() - cpu) / (time.monotonic() - began)

    async def _settle(self) -> None:
        """Waits until the replicas' consumers have all partitions, as evenly as they go: no join is under way, and no
        second round of one is due."""
        until = time.monotonic() + _SETTLE_BOUND
        while time.monotonic() < until and self._played.fleet is not None:
            ports = [replica.port for replica in self._played.fleet.replicas if not replica.over]
            held = await asyncio.gather(*(partitions(HOST, port, _ASK_BOUND) for port in ports))
            if all(held) and sum(held) == PARTITIONS and max(held) - min(held) <= 1:
                return
            await asyncio.sleep(_ASK_EVERY)
        self._view.tell(f"the consumers have not settled in {_SETTLE_BOUND:g} s")

    async def _wind_down(self) -> None:
        """Load off, outbox empty, replicas stopped. Each of it bounded."""
        if self._played.load is not None and self._played.products is not None and self._played.tables is not None:
            self._at_step("load stops")
            self._played.load.stop()
            self._played.products.stop()
            await self._ended("load", _LOAD_BOUND)
            await self._ended("products", _LOAD_BOUND)
            self._at_step("the outbox drains")
            try:
                published = {event.event_id for event in self._played.products.published}
                left = await self._played.tables.drained(self._patience, self._plan.consumer, published)
                if left:
                    self._view.tell(f"{left} events still wait in the outbox after {self._patience():g} s")
            except QuiesceError as error:
                self._played.problems.append(str(error))
        if self._played.fleet is not None:
            self._at_step("the replicas stop")
            await self._played.fleet.stop_all("end of the drill")

    def _patience(self) -> float:
        """Seconds for the outbox to drain."""
        return _HURRIED_DRAIN_BOUND if self._stop.is_set() else _DRAIN_BOUND

    async def _close(self) -> None:
        for task in self._background:
            task.cancel()
        if self._background:
            await asyncio.wait(self._background, timeout=5.0)
        if self._played.fleet is not None:
            await self._played.fleet.close()
        await self._played.balancer.close()
        await self._servers.close()
        self._view.close()

    def _at_step(self, step: str) -> None:
        if step != self._played.step:
            self._played.step = step
            self._view.tell(f"--- {step}")

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._background.add(task)
        task.add_done_callback(self._background_ended)

    def _background_ended(self, task: "asyncio.Task[None]") -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._played.problems.append(f"{task.get_name()} failed: {type(error).__name__}: {error}")

    async def _announce_stop(self) -> None:
        await self._stop.wait()
        self._view.tell("stopping in order, then the audit; once more to leave at once")

    async def _ended(self, name: str, within: float) -> None:
        tasks = {task for task in self._background if task.get_name() == name}
        if tasks:
            await asyncio.wait(tasks, timeout=within)

    async def _show(self) -> None:
        load, fleet, tables = self._played.load, self._played.fleet, self._played.tables
        assert load is not None
        assert fleet is not None
        assert tables is not None
        while True:
            self._view.show(
                take_picture(
                    step=self._played.step,
                    planned=self._plan.seconds,
                    ledger=self._played.ledger,
                    load=load,
                    fleet=fleet,
                    balancer=self._played.balancer,
                    backlog=tables.backlog,
                )
            )
            await asyncio.sleep(_SHOW_EVERY)
