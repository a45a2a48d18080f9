"""The outbox: values and rules, and the ports of its two sides. No driver is imported here."""

from quiesce.outbox.event import MAX_EVENT_BYTES, ClaimedEvent, OutboxEvent, PlainEvent
from quiesce.outbox.outcome import Dead, Dispatched, Outcome, Retry
from quiesce.outbox.statement import BatchStatement, Statement, batch_statement, statement

__all__ = [
    "MAX_EVENT_BYTES",
    "BatchStatement",
    "ClaimedEvent",
    "Dead",
    "Dispatched",
    "OutboxEvent",
    "Outcome",
    "PlainEvent",
    "Retry",
    "Statement",
    "batch_statement",
    "statement",
]
