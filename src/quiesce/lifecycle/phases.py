"""Where a service is, and the parts its shutdown is made of."""

from enum import StrEnum


class Phase(StrEnum):
    """Where a service is. It only ever moves downwards in this list."""

    STARTING = "starting"
    RUNNING = "running"
    DRAINING = "draining"
    CLOSING = "closing"
    STOPPED = "stopped"


class Part(StrEnum):
    """A part of the shutdown. The values are labels in metrics, logs and the report."""

    LAME_DUCK = "lame_duck"
    HTTP = "http"
    WORKERS = "workers"
    PRODUCERS = "producers"
    POOLS = "pools"
    REPORT = "report"


CLOSING_ORDER = (Part.PRODUCERS, Part.POOLS)
"""Producers before pools: what a worker still has queued for Kafka is settled in the database."""
