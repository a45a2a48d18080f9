"""What the topics promise: whether an ack is worth what the relay takes it for. Asked once, by `doctor`."""

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

# The public name is there too, but not for type checkers: it is not re-exported explicitly.
from confluent_kafka.admin._config import ConfigResource

from quiesce.kafka.blocking import in_thread
from quiesce.kafka.settings import admin_settings, given_settings, refused_settings
from quiesce.kafka.topic_state import RECORD_ROOM
from quiesce.outbox.checks import Check, Verdict, worst
from quiesce.outbox.event import MAX_EVENT_BYTES

_Fault = tuple[Verdict, str, str]


@dataclass(frozen=True, slots=True)
class _Topic:
    partitions: int
    leaderless: int
    replicas: int
    """Of the partition that has the fewest."""
    in_sync: int


async def topic_promises(
    bootstrap_or_config: str | Mapping[str, object],
    topics: Collection[str],
    *,
    max_event_bytes: int = MAX_EVENT_BYTES,
    partitions: Mapping[str, int] | None = None,
    timeout: float = 10.0,
) -> list[Check]:
    """One check for the brokers and one for each topic, within about `timeout` seconds. It creates no topic.

    `partitions`: how many a topic was made with. Adding some moves keys.

    Raises:
        SettingsError: the client does not take its settings.
    """
    settings = admin_settings(given_settings(bootstrap_or_config, {}))
    return await in_thread(
        "quiesce-kafka-promises",
        lambda: _look(settings, sorted(topics), max_event_bytes, partitions or {}, time.monotonic() + timeout),
    )


def _look(
    settings: dict[str, Any], topics: list[str], max_event_bytes: int, partitions: Mapping[str, int], until: float
) -> list[Check]:
    try:
        admin = AdminClient(settings)
    except (KafkaException, ValueError, TypeError) as error:
        raise refused_settings("client", error) from error
    try:
        # All topics: a question about one that is missing may create it.
        cluster = admin.list_topics(timeout=max(0.1, until - time.monotonic()))
    except KafkaException as error:
        return [Check("brokers", "bad", f"none answers: {error.args[0].str()}", "See the address, and the network")]
    found = [Check("brokers", "ok", f"{len(cluster.brokers)} answer")]
    if not topics:
        return [*found, Check("topics", "warn", "no event names one yet", "Name them: --topic")]
    there: dict[str, _Topic] = {}
    for name in topics:
        metadata = cluster.topics.get(name)
        if metadata is None or metadata.error is not None or not metadata.partitions:
            found.append(
                Check(f"topic {name}", "bad", "does not exist, or may not be seen", "Create it: the relay never does")
            )
            continue
        parts = list(metadata.partitions.values())
        there[name] = _Topic(
            len(parts),
            sum(1 for part in parts if part.leader < 0),
            min(len(part.replicas) for part in parts),
            min(len(part.isrs) for part in parts),
        )
    if not there:
        return found
    asked = admin.describe_configs(
        [ConfigResource(ConfigResource.Type.TOPIC, name) for name in there],
        request_timeout=max(0.1, until - time.monotonic()),
    )
    for resource, future in asked.items():
        name, topic = resource.name, there[resource.name]
        try:
            entries = future.result(max(0.1, until - time.monotonic()) + 1.0)
        except (KafkaException, TimeoutError) as error:
            told = error.args[0].str() if isinstance(error, KafkaException) else "no answer in time"
            advice = "Takes the right DescribeConfigs on the topic"
            found.append(Check(f"topic {name}", "warn", f"its settings may not be looked at: {told}", advice))
            continue
        config = {entry.name: entry.value for entry in entries.values()}
        found.append(_judged(name, topic, config, max_event_bytes, partitions.get(name)))
    return found


def _judged(
    name: str, topic: _Topic, config: Mapping[str, str | None], max_event_bytes: int, expected: int | None = None
) -> Check:
    in_sync = int(config.get("min.insync.replicas") or 1)
    limit = int(config.get("max.message.bytes") or 0)
    faults: list[_Fault] = []
    if expected not in (None, topic.partitions):
        faults.append(
            (
                "bad",
                f"it was to have {expected} partitions: with another number keys have moved, and events of one key "
                "stand in two partitions",
                "Let consumers read to the end of all before they rely on order again, then expect the new number",
            )
        )
    if topic.leaderless:
        faults.append(("bad", f"{topic.leaderless} partitions have no leader", "See the brokers"))
    if in_sync < 2:
        told = f"min.insync.replicas is {in_sync}: an event acked by one broker is lost with it"
        faults.append(("bad", told, "Set min.insync.replicas to 2"))
    elif topic.replicas < in_sync:
        faults.append(
            ("bad", f"{topic.replicas} replicas, min.insync.replicas {in_sync}: takes no event", "Add replicas")
        )
    elif topic.replicas == in_sync:
        told = f"{topic.replicas} replicas, min.insync.replicas {in_sync}: takes no event while one broker is away"
        faults.append(("warn", told, "Add a replica"))
    if 0 < topic.in_sync < in_sync:
        faults.append(("bad", f"only {topic.in_sync} replicas are in sync: takes no event now", "See the brokers"))
    if (config.get("unclean.leader.election.enable") or "false") != "false":
        faults.append(
            ("bad", "unclean.leader.election.enable is on: an acked event may be lost at a failover", "Turn it off")
        )
    if 0 < limit < max_event_bytes + RECORD_ROOM:
        faults.append(
            (
                "bad",
                f"max.message.bytes is {limit:,}: events up to max_event_bytes {max_event_bytes:,} are enqueued, and "
                "become dead letters above it",
                f"Raise it to {max_event_bytes + RECORD_ROOM:,}, or enqueue with a smaller max_event_bytes",
            )
        )
    about = f"{topic.partitions} partitions, {topic.replicas} replicas"
    if not faults:
        return Check(f"topic {name}", "ok", f"{about}, min.insync.replicas {in_sync}, max.message.bytes {limit:,}")
    verdict = worst(Check("", fault[0], "") for fault in faults)
    told = "; ".join([about, *(fault[1] for fault in faults)])
    return Check(f"topic {name}", verdict, told, ". ".join(fault[2] for fault in faults))
