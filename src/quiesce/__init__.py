"""quiesce: a Python service that can be stopped, rolled and killed without losing or doubling work.

Start-up is one function, read from top to bottom; stopping is its lines backwards; returning means ready.
"""

from quiesce.lifecycle.budget import Budget
from quiesce.lifecycle.phases import Part
from quiesce.lifecycle.ports import Stop, Worker
from quiesce.outbox import OutboxEvent
from quiesce.relay import Relay
from quiesce.supervisor.decorator import service
from quiesce.supervisor.entry import running
from quiesce.supervisor.sections import critical
from quiesce.supervisor.service import Service
from quiesce.workers import Consumer, Loop, Periodic

__all__ = [
    "Budget",
    "Consumer",
    "Loop",
    "OutboxEvent",
    "Part",
    "Periodic",
    "Relay",
    "Service",
    "Stop",
    "Worker",
    "critical",
    "running",
    "service",
]
