"""The kinds of background work that every service has, on one iteration loop."""

from quiesce.workers.bad_input import BadInput
from quiesce.workers.consumer import Consumer
from quiesce.workers.handlers import batches, by_topic, by_type, json_value
from quiesce.workers.in_thread import in_thread
from quiesce.workers.loop import Loop
from quiesce.workers.periodic import Periodic
from quiesce.workers.retries import Retries
from quiesce.workers.thread import ThreadWorker

__all__ = [
    "BadInput",
    "Consumer",
    "Loop",
    "Periodic",
    "Retries",
    "ThreadWorker",
    "batches",
    "by_topic",
    "by_type",
    "in_thread",
    "json_value",
]
