"""How long topics keep their records: an inbox must remember them at least as long."""

import time
from collections.abc import Mapping
from math import inf

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

# The public name is there too, but not for type checkers: it is not re-exported explicitly.
from confluent_kafka.admin._config import ConfigResource

from quiesce.errors import QuiesceError, SettingsError, Unavailable
from quiesce.inbox.retention import Kept
from quiesce.kafka.blocking import in_thread
from quiesce.kafka.settings import Settings, admin_settings, given_settings, refused_settings

_MISSING = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_EXCEPTION}
_FORBIDDEN = {KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED}


class TopicRetention:
    """Asks the brokers how long they keep the records of topics. For `prune_inbox`; each call asks anew.

    Name all topics that the consumers of the inbox read, retry and dead-letter topics too: a record that is redriven
    comes again as well.

    Args:
        bootstrap_or_config: an address, or settings of the Kafka client.
        topics: at least one.
        timeout: seconds for the answer.

    Raises:
        SettingsError: no topic, or no address.
    """

    def __init__(self, bootstrap_or_config: str | Mapping[str, object], *topics: str, timeout: float = 10.0) -> None:
        if not topics or not all(topics):
            raise SettingsError("topic retention: topics: got none, takes one topic at least")
        self._settings = admin_settings(given_settings(bootstrap_or_config, {}))
        self._topics = sorted(set(topics))
        self._timeout = timeout

    async def __call__(self) -> Kept:
        """The retention of the topic that keeps its records longest.

        Raises:
            SettingsError: a topic does not exist or may not be looked at, the broker does not tell, or the client does
                not take its settings.
            Unavailable: no broker answered in time.
        """
        until = time.monotonic() + self._timeout
        return await in_thread("quiesce-kafka-retention", lambda: longest(_ask(self._settings, self._topics, until)))


def longest(configs: Mapping[str, Mapping[str, str | None]]) -> Kept:
    """Of several topics' settings the one that keeps a record longest."""
    return max((_kept(name, config) for name, config in configs.items()), key=lambda one: (one.seconds, one.longer))


def _kept(name: str, config: Mapping[str, str | None]) -> Kept:
    topic = f"topic {name}"
    policies = {policy.strip() for policy in (config.get("cleanup.policy") or "delete").split(",")}
    if "delete" not in policies:
        return Kept(inf, topic, f"cleanup.policy={','.join(sorted(policies))}")
    told = config.get("retention.ms")
    if not told:
        # Not for ever: a broker other than Apache Kafka's may keep records as long as it likes.
        raise SettingsError(f"topic retention: {topic}: the broker tells no retention.ms; say how many seconds it is")
    milliseconds = int(told)
    if milliseconds < 0:
        return Kept(inf, topic, "retention.ms=-1")
    longer = int(config.get("segment.ms") or 0) / 1000
    return Kept(milliseconds / 1000, topic, f"retention.ms={milliseconds}", longer)


def _ask(settings: Settings, topics: list[str], until: float) -> dict[str, dict[str, str | None]]:
    try:
        admin = AdminClient(settings)
    except (KafkaException, ValueError, TypeError) as error:
        raise refused_settings("client", error) from error
    # A question about settings creates no topic.
    asked = admin.describe_configs(
        [ConfigResource(ConfigResource.Type.TOPIC, name) for name in topics],
        request_timeout=max(0.1, until - time.monotonic()),
    )
    answered = {}
    for resource, future in asked.items():
        try:
            entries = future.result(max(0.1, until - time.monotonic()) + 1.0)
        except (KafkaException, TimeoutError) as error:
            raise _meaning(resource.name, error) from error
        answered[resource.name] = {entry.name: entry.value for entry in entries.values()}
    return answered


def _meaning(topic: str, error: Exception) -> QuiesceError:
    told = error.args[0] if isinstance(error, KafkaException) else None
    if told is not None and told.code() in _MISSING:
        return SettingsError(f"topic retention: topic {topic}: does not exist, takes one that does")
    if told is not None and told.code() in _FORBIDDEN:
        return SettingsError(
            f"topic retention: topic {topic}: its settings may not be looked at. Takes the right DescribeConfigs on "
            "the topic; or say how many seconds it keeps a record"
        )
    reason = "no answer in time" if told is None else told.str()
    return Unavailable(f"topic retention: topic {topic}: the brokers do not answer: {reason}")
