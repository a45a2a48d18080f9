"""quiesce: a Python service that can be stopped, rolled and killed without losing or doubling work.

Start-up is one function, read from top to bottom; stopping is its lines backwards; returning means ready.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quiesce.lifecycle.budget import Budget
    from quiesce.lifecycle.phases import Part
    from quiesce.lifecycle.ports import Stop, Worker
    from quiesce.lifecycle.restart import Restart
    from quiesce.outbox import OutboxEvent
    from quiesce.relay import Relay
    from quiesce.supervisor.critical import critical, critical_in_thread, remaining
    from quiesce.supervisor.decorator import service
    from quiesce.supervisor.entry import running
    from quiesce.supervisor.service import Service
    from quiesce.workers import Consumer, Loop, Periodic, ThreadWorker

__all__ = [
    "Budget",
    "Consumer",
    "Loop",
    "OutboxEvent",
    "Part",
    "Periodic",
    "Relay",
    "Restart",
    "Service",
    "Stop",
    "ThreadWorker",
    "Worker",
    "critical",
    "critical_in_thread",
    "remaining",
    "running",
    "service",
]

_HOME = {
    "Budget": "quiesce.lifecycle.budget",
    "Consumer": "quiesce.workers",
    "Loop": "quiesce.workers",
    "OutboxEvent": "quiesce.outbox",
    "Part": "quiesce.lifecycle.phases",
    "Periodic": "quiesce.workers",
    "Relay": "quiesce.relay",
    "Restart": "quiesce.lifecycle.restart",
    "Service": "quiesce.supervisor.service",
    "Stop": "quiesce.lifecycle.ports",
    "ThreadWorker": "quiesce.workers",
    "Worker": "quiesce.lifecycle.ports",
    "critical": "quiesce.supervisor.critical",
    "critical_in_thread": "quiesce.supervisor.critical",
    "remaining": "quiesce.supervisor.critical",
    "running": "quiesce.supervisor.entry",
    "service": "quiesce.supervisor.decorator",
}
"""Where each name stands. They are imported when they are first used: `quiesce run` has to take the signals before
anything heavy is loaded, and this module is loaded before all others."""

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        from importlib import import_module

        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(_HOME[name]), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
