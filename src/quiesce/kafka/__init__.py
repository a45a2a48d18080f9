"""Kafka through confluent-kafka (librdkafka): the publisher of the relay and the source of consumers."""

from quiesce.kafka.publisher import KafkaPublisher
from quiesce.kafka.source import KafkaSource

__all__ = ["KafkaPublisher", "KafkaSource"]
