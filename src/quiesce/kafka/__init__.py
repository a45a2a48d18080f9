"""Kafka through confluent-kafka (librdkafka): the publisher of the relay, the source of consumers, and where a consumer
puts what it cannot handle."""

from quiesce.kafka.dead_letters import KafkaDeadLetters
from quiesce.kafka.publisher import KafkaPublisher
from quiesce.kafka.retry_topic import KafkaRetryTopic
from quiesce.kafka.source import KafkaSource
from quiesce.kafka.topic_retention import TopicRetention

__all__ = ["KafkaDeadLetters", "KafkaPublisher", "KafkaRetryTopic", "KafkaSource", "TopicRetention"]
