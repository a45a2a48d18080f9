"""The kinds of background work that every service has, on one iteration loop."""

from quiesce.workers.consumer import Consumer
from quiesce.workers.loop import Loop
from quiesce.workers.periodic import Periodic
from quiesce.workers.thread import ThreadWorker

__all__ = ["Consumer", "Loop", "Periodic", "ThreadWorker"]
