"""Consuming safely: the record, the assignment it came under, and which offsets may be committed."""

from quiesce.inbox.record import Batch, Record, TopicPartition

__all__ = ["Batch", "Record", "TopicPartition"]
