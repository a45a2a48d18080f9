"""Topics on a Kafka broker that tests use, whoever started it."""

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from quiesce.errors import StartError

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

_INSTALL = 'topics are created with confluent-kafka: pip install "quiesce[kafka]"'
_ADMIN_BOUND = 15.0
_WARM_BOUND = 5.0
_POLL = 0.005


@dataclass(frozen=True)
class KafkaAddress:
    """A broker that runs somewhere, ours or not. `bootstrap` is the value for `bootstrap.servers`."""

    bootstrap: str

    def create_topic(self, name: str, partitions: int = 3, config: Mapping[str, str] | None = None) -> None:
        """Create a topic and wait until every partition has a leader.

        Raises StartError when the broker refuses or does not answer within 15 s.
        """
        admin = self._admin()
        from confluent_kafka import KafkaException
        from confluent_kafka.cimpl import NewTopic

        topic = NewTopic(name, partitions, 1, config=dict(config or {}))
        until = time.monotonic() + _ADMIN_BOUND
        try:
            # `admin` must live until its futures are done: they never end without it.
            for future in admin.create_topics([topic], request_timeout=_ADMIN_BOUND).values():
                future.result(_ADMIN_BOUND)
            while not _led(admin, name, partitions):
                if time.monotonic() > until:
                    raise StartError(f"topic {name} has no leader after {_ADMIN_BOUND:g} s on {self.bootstrap}")
                time.sleep(_POLL)
        except (KafkaException, TimeoutError) as error:
            why = str(error) or f"no answer within {_ADMIN_BOUND:g} s"
            raise StartError(f"cannot create topic {name} on {self.bootstrap}: {why}") from error

    def delete_topic(self, name: str) -> None:
        """Delete a topic. A missing one is fine. Raises StartError as `create_topic` does."""
        admin = self._admin()
        from confluent_kafka import KafkaError, KafkaException

        try:
            for future in admin.delete_topics([name], request_timeout=_ADMIN_BOUND).values():
                future.result(_ADMIN_BOUND)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise StartError(f"cannot delete topic {name} on {self.bootstrap}: {error}") from error
        except TimeoutError as error:
            raise StartError(f"cannot delete topic {name} on {self.bootstrap}: no answer") from error

    def allow(self, user: str, operation: str, topic: str) -> None:
        """Let a user do this to a topic: `write`, `read`, `describe`. Raises StartError as `create_topic` does."""
        admin = self._admin()
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public, but not in its __all__
            AclBinding,
            AclOperation,
            AclPermissionType,
            ResourcePatternType,
            ResourceType,
        )

        right = AclBinding(
            ResourceType.TOPIC,
            topic,
            ResourcePatternType.LITERAL,
            f"User:{user}",
            "*",
            AclOperation[operation.upper()],
            AclPermissionType.ALLOW,
        )
        try:
            for future in admin.create_acls([right], request_timeout=_ADMIN_BOUND).values():
                future.result(_ADMIN_BOUND)
        except (KafkaException, TimeoutError) as error:
            raise StartError(f"cannot allow {user} to {operation} {topic} on {self.bootstrap}: {error}") from error

    def warm(self) -> None:
        """Make the broker create its topic of offsets now: otherwise the first group waits 3 s for it.

        Does nothing without confluent-kafka, and no harm when the broker does not answer within 5 s.
        """
        try:
            from confluent_kafka import Consumer, KafkaException, TopicPartition
        except ImportError:
            return
        # Asked through a consumer: the admin client's list_consumer_group_offsets ends the process (SIGSEGV
        # in librdkafka) when the coordinator answers "not yet", which it does here.
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": "warm-up", "log_level": 0})
        with contextlib.suppress(KafkaException):
            consumer.committed([TopicPartition("warm-up", 0)], timeout=_WARM_BOUND)
        consumer.close()

    def _admin(self) -> "AdminClient":
        try:
            from confluent_kafka.admin import AdminClient
        except ImportError as error:
            raise StartError(_INSTALL) from error
        return AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})


def _led(admin: "AdminClient", name: str, partitions: int) -> bool:
    topic = admin.list_topics(name, timeout=_ADMIN_BOUND).topics[name]
    return (
        topic.error is None
        and len(topic.partitions) == partitions
        and all(part.leader >= 0 and part.error is None for part in topic.partitions.values())
    )
