"""What was done in a drill, and the verdict on it."""

import threading
from dataclasses import dataclass, field
from functools import partial

from quiesce.drill.audit import Findings, audit
from quiesce.drill.balancer import Balancer
from quiesce.drill.fleet import Fleet
from quiesce.drill.ledger import Ledger, percentile, split_failed
from quiesce.drill.load import OrderLoad
from quiesce.drill.payment_audit import audit_payments
from quiesce.drill.plan import Plan
from quiesce.drill.product_audit import ProductFindings, audit_products
from quiesce.drill.product_load import ProductLoad
from quiesce.drill.servers import Servers
from quiesce.drill.tables import Tables
from quiesce.drill.topic import read_committed, read_topic
from quiesce.drill.verdict import Verdict
from quiesce.drill.view import View
from quiesce.kafka.blocking import in_thread


@dataclass(eq=False, slots=True)
class Played:
    """What there is of a drill. What is None was not begun."""

    balancer: Balancer
    ledger: Ledger = field(default_factory=Ledger)
    fleet: Fleet | None = None
    load: OrderLoad | None = None
    products: ProductLoad | None = None
    tables: Tables | None = None
    step: str = "starting"
    problems: list[str] = field(default_factory=list)
    interrupted: bool = False
    cpu: float = 0.0
    """Share of one core that load and balancer used."""

    @property
    def unanswered(self) -> int:
        """Requests that were given up, and those that are still under way at the end."""
        return len(self.ledger.unanswered) + (self.load.in_flight if self.load is not None else 0)


async def judge(plan: Plan, servers: Servers, played: Played, view: View, cancelled: threading.Event) -> Verdict:
    """Audits the tables and the topic. `cancelled` ends the reading of the topic.

    Raises:
        Unavailable: the database or the broker does not answer.
    """
    findings, paid = await _audit(plan, servers, played, view, cancelled)
    inside, outside = split_failed(played.ledger.failed, played.balancer.excused)
    fleet, ledger = played.fleet, played.ledger
    return Verdict(
        findings=findings,
        failed_inside=inside,
        failed_outside=outside,
        unanswered=played.unanswered,
        replayed=ledger.replayed,
        payments=None if plan.charges is None else audit_payments(plan.charges, paid),
        products=await _product_findings(plan, servers, played),
        shutdowns=tuple(fleet.shutdowns) if fleet else (),
        kills=tuple(fleet.kills) if fleet else (),
        problems=[*played.problems, *(fleet.problems if fleet else ())],
        interrupted=played.interrupted,
        may_wait=plan.settles,
        seconds=ledger.answered_at[-1] if ledger.answered_at else 0.0,
        p50=percentile(ledger.latencies, 0.50),
        p99=percentile(ledger.latencies, 0.99),
        load_cpu=played.cpu,
    )


async def _audit(
    plan: Plan, servers: Servers, played: Played, view: View, cancelled: threading.Event
) -> tuple[Findings, set[str]]:
    """The findings, and the orders that the tables call paid."""
    if played.load is None or played.tables is None:
        return audit((), (), (), ()), set()
    topic = servers.topics[plan.order_topic]
    rows, orders = await played.tables.read(topic)
    view.tell(f"reading the topic: {len(rows)} events are to be there")
    events = [row.event_id for row in rows]
    arrivals = await in_thread("read topic", partial(read_topic, servers.bootstrap, topic, events, cancelled=cancelled))
    findings = audit(played.ledger.accepted, orders, rows, arrivals, unanswered=played.unanswered)
    return findings, {order for order, status in orders.items() if status == "paid"}


async def _product_findings(plan: Plan, servers: Servers, played: Played) -> ProductFindings | None:
    if played.products is None or played.tables is None:
        return None
    group, topic = plan.consumer + servers.suffix, servers.topics[plan.product_topic]
    # Before the marks: what is committed is marked by then.
    committed = await in_thread("read offsets", partial(read_committed, servers.bootstrap, group, topic))
    marked, versions = await played.tables.products(plan.consumer)
    return audit_products(played.products.published, marked, versions, committed)
