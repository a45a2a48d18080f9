"""What a drill is to do."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from quiesce.drill.payment_endpoint import Charges
from quiesce.drill.replica import Recipe
from quiesce.drill.scenario import Step
from quiesce.drill.servers import Servers


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
        consumer: whose marks in the inbox tell that a product event was handled; with the servers' suffix it is the
            name of its group.
        settles: a replica is taken away only while all partitions are taken, shared out evenly. For a broker whose
            groups do not survive anything else.
        logs: a directory for the replicas' logs; None keeps only those of replicas that did not end well.
        charges: what the payment API that the replicas use was asked, and did.
    """

    recipe: Callable[[Servers], Recipe]
    steps: Sequence[Step]
    order_topic: str
    product_topic: str
    consumer: str
    replicas: int = 2
    seconds: float = 30.0
    rate: float = 200.0
    prestop: float = 2.0
    settles: bool = False
    logs: Path | None = None
    charges: Charges | None = None
