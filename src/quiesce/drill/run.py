"""One drill from the first server started to the verdict."""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from quiesce.drill.audit import Findings, audit
from quiesce.drill.balancer import Balancer
from quiesce.drill.fleet import Fleet
from quiesce.drill.ledger import Ledger, percentile, split_failed
from quiesce.drill.load import OrderLoad, ProductLoad
from quiesce.drill.payment_audit import PaymentFindings, audit_payments
from quiesce.drill.payment_endpoint import Charges
from quiesce.drill.picture import take_picture
from quiesce.drill.replica import Recipe
from quiesce.drill.scenario import Step, perform
from quiesce.drill.servers import Servers
from quiesce.drill.side_by_side import side_by_side
from quiesce.drill.tables import Tables
from quiesce.drill.topic import read_topic
from quiesce.drill.verdict import Verdict
from quiesce.drill.view import View
from quiesce.errors import QuiesceError
from quiesce.kafka.blocking import in_thread

_SHOW_EVERY = 0.5
_LOAD_BOUND = 30.0
_DRAIN_BOUND = 20.0
_HURRIED_DRAIN_BOUND = 8.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What a drill does.

    Args:
        recipe: makes the replica's recipe of the servers, once these run.
        replicas: how many there are from the beginning.
        steps: the scenario.
        seconds: of load, at least; the scenario is always played to its end under load.
        rate: orders a second.
        order_topic, product_topic: two of the servers' topics.
        charges: what the payment API that the replicas use was asked, and did.
    """

    recipe: Callable[[Servers], Recipe]
    steps: Sequence[Step]
    order_topic: str
    product_topic: str
    replicas: int = 2
    seconds: float = 30.0
    rate: float = 200.0
    prestop: float = 2.0
    charges: Charges | None = None


@dataclass(slots=True)
class _Progress:
    step: str = "starting"
    problems: list[str] = field(default_factory=list)
    interrupted: bool = False


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
        self._progress = _Progress()
        self._ledger = Ledger()
        self._balancer = Balancer(tell=view.tell)
        self._fleet: Fleet | None = None
        self._load: OrderLoad | None = None
        self._tables: Tables | None = None
        self._cancelled = threading.Event()
        self._background: set[asyncio.Task[None]] = set()
        self._cpu = 0.0
        self._paid: set[str] = set()

    async def run(self) -> Verdict:
        """Returns when nothing that it started is left.

        Raises:
            QuiesceError: the servers or the first replicas could not start.
        """
        self._spawn(self._announce_stop(), "announce")
        try:
            await self._until_stopped(self._perform())
            await self._wind_down()
            return await self._judge()
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
            self._progress.interrupted = not working.done()
        finally:
            stopping.cancel()
            working.cancel()
            await asyncio.wait({working})
        if working.cancelled():
            return
        try:
            working.result()
        except QuiesceError as error:
            if self._load is None:
                raise
            self._progress.problems.append(str(error))

    async def _perform(self) -> None:
        plan = self._plan
        await self._servers.start()
        self._tables = Tables(self._servers.dsn)
        await self._balancer.start()
        self._fleet = fleet = Fleet(
            plan.recipe(self._servers), self._balancer, prestop=plan.prestop, tell=self._view.tell
        )
        await side_by_side(*(fleet.add() for _ in range(plan.replicas)))
        self._load = load = OrderLoad(f"http://127.0.0.1:{self._balancer.port}/orders", plan.rate, self._ledger)
        self._view.tell(f"{plan.rate:g} orders a second to the balancer on port {self._balancer.port}")
        cpu = time.process_time()
        self._spawn(load.run(), "load")
        self._spawn(ProductLoad(self._servers.bootstrap, self._servers.topics[plan.product_topic]).run(), "products")
        self._spawn(self._tables.watch(), "backlog")
        self._spawn(self._show(), "view")
        began = time.monotonic()
        try:
            await perform(plan.steps, fleet, self._at_step)
            await asyncio.sleep(max(0.0, began + plan.seconds - time.monotonic()))
        finally:
            self._cpu = (time.process_time() - cpu) / (time.monotonic() - began)

    async def _wind_down(self) -> None:
        """Load off, outbox empty, replicas stopped. Each of it bounded."""
        if self._load is not None and self._tables is not None:
            self._at_step("load stops")
            self._load.stop()
            await self._ended("load", _LOAD_BOUND)
            self._at_step("the outbox drains")
            try:
                left = await self._tables.drained(self._patience)
                if left:
                    self._view.tell(f"{left} events still wait in the outbox after {self._patience():g} s")
            except QuiesceError as error:
                self._progress.problems.append(str(error))
        if self._fleet is not None:
            self._at_step("the replicas stop")
            await self._fleet.stop_all("end of the drill")

    def _patience(self) -> float:
        """Seconds for the outbox to drain."""
        return _HURRIED_DRAIN_BOUND if self._stop.is_set() else _DRAIN_BOUND

    async def _judge(self) -> Verdict:
        self._at_step("audit")
        findings = await self._audit()
        inside, outside = split_failed(self._ledger.failed, self._balancer.excused)
        fleet = self._fleet
        return Verdict(
            findings=findings,
            failed_inside=inside,
            failed_outside=outside,
            unanswered=self._unanswered,
            replayed=self._ledger.replayed,
            payments=self._payments(),
            shutdowns=tuple(fleet.shutdowns) if fleet else (),
            kills=tuple(fleet.kills) if fleet else (),
            problems=[*self._progress.problems, *(fleet.problems if fleet else ())],
            interrupted=self._progress.interrupted,
            seconds=self._ledger.answered_at[-1] if self._ledger.answered_at else 0.0,
            p50=percentile(self._ledger.latencies, 0.50),
            p99=percentile(self._ledger.latencies, 0.99),
            load_cpu=self._cpu,
        )

    async def _audit(self) -> Findings:
        if self._load is None or self._tables is None:
            return audit((), (), (), ())
        topic = self._servers.topics[self._plan.order_topic]
        rows, orders = await self._tables.read(topic)
        self._paid = {order for order, status in orders.items() if status == "paid"}
        self._view.tell(f"reading the topic: {len(rows)} events are to be there")
        read = partial(
            read_topic,
            self._servers.bootstrap,
            topic,
            [row.event_id for row in rows],
            cancelled=self._cancelled,
        )
        arrivals = await in_thread("read topic", read)
        return audit(self._ledger.accepted, orders, rows, arrivals, unanswered=self._unanswered)

    @property
    def _unanswered(self) -> int:
        """Requests that were given up, and those that are still under way at the end."""
        return len(self._ledger.unanswered) + (self._load.in_flight if self._load is not None else 0)

    def _payments(self) -> PaymentFindings | None:
        charges = self._plan.charges
        return None if charges is None else audit_payments(charges, self._paid)

    async def _close(self) -> None:
        for task in self._background:
            task.cancel()
        if self._background:
            await asyncio.wait(self._background, timeout=5.0)
        if self._fleet is not None:
            await self._fleet.close()
        await self._balancer.close()
        await self._servers.close()
        self._view.close()

    def _at_step(self, step: str) -> None:
        if step != self._progress.step:
            self._progress.step = step
            self._view.tell(f"--- {step}")

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._background.add(task)
        task.add_done_callback(self._background_ended)

    def _background_ended(self, task: "asyncio.Task[None]") -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._progress.problems.append(f"{task.get_name()} failed: {type(error).__name__}: {error}")

    async def _announce_stop(self) -> None:
        await self._stop.wait()
        self._view.tell("stopping in order, then the audit; once more to leave at once")

    async def _ended(self, name: str, within: float) -> None:
        tasks = {task for task in self._background if task.get_name() == name}
        if tasks:
            await asyncio.wait(tasks, timeout=within)

    async def _show(self) -> None:
        load, fleet, tables = self._load, self._fleet, self._tables
        assert load is not None
        assert fleet is not None
        assert tables is not None
        while True:
            self._view.show(
                take_picture(
                    step=self._progress.step,
                    planned=self._plan.seconds,
                    ledger=self._ledger,
                    load=load,
                    fleet=fleet,
                    balancer=self._balancer,
                    backlog=tables.backlog,
                )
            )
            await asyncio.sleep(_SHOW_EVERY)
