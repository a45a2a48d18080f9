"""Consuming safely: the record, the assignment it came under, which may begin, and which offsets may be committed."""

from quiesce.inbox.event_id import event_id_of
from quiesce.inbox.record import Batch, Record, TopicPartition

__all__ = ["Batch", "Record", "TopicPartition", "event_id_of"]
