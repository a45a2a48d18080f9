"""What a consumer is given: our defaults, the user's settings, and a refusal of what would break a promise."""

from collections.abc import Mapping
from dataclasses import dataclass

from quiesce.errors import SettingsError
from quiesce.kafka.positions import Start
from quiesce.kafka.settings import COMMON, Promise, Settings, is_off, refuse_broken_promises, whole_number

FETCH_AGAIN = 50
"""Milliseconds until librdkafka looks again whether it may fetch, once it has read ahead as much as it may. Its own
second is several times as long as a quick consumer takes for all of that; nothing comes for the rest of it.
"""

_DEFAULTS: Settings = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    # So that an end without a record at it can be committed.
    "enable.partition.eof": True,
    "fetch.queue.backoff.ms": FETCH_AGAIN,
}

_SOCKET_TIMEOUT = 10_000
"""What bounds a commit to a broker that does not answer, in milliseconds: nobody polls meanwhile."""

_STRATEGY = "cooperative-sticky"

_BY_HAND = Promise(is_off, "false", "offsets are committed by name, after handling")
_OURS = Promise(lambda _: False, "nothing here", "this callback is taken")
_PROMISES: Mapping[str, Promise] = {
    "enable.auto.commit": _BY_HAND,
    "auto.commit.enable": _BY_HAND,
    "enable.auto.offset.store": _BY_HAND,
    "default.topic.config": Promise(
        lambda _: False, "nothing here", "topic settings stand at the top level, where they are checked"
    ),
    "enable.partition.eof": Promise(lambda got: not is_off(got), "true", "the lag of a topic would never come to 0"),
    "on_commit": _OURS,
    "rebalance_cb": _OURS,
    "error_cb": _OURS,
    "logger": _OURS,
}

_BROKERS: Mapping[str, str] = {
    "session.timeout.ms": "the broker's group.consumer.session.timeout.ms, or the group's consumer.session.timeout.ms",
    "heartbeat.interval.ms": "the broker's group.consumer.heartbeat.interval.ms",
    "partition.assignment.strategy": "group.remote.assignor here, or the broker's group.consumer.assignors",
    "group.protocol.type": "nothing, there is no choice",
}
"""Settings of a member that the protocol `consumer` has moved, and where to."""

_STARTS = {
    "earliest": Start.EARLIEST,
    "smallest": Start.EARLIEST,
    "beginning": Start.EARLIEST,
    "latest": Start.LATEST,
    "largest": Start.LATEST,
    "end": Start.LATEST,
    "error": Start.REFUSE,
    "none": Start.REFUSE,
}

_MAX_POLL_INTERVAL = 300_000
_SESSION = 45_000
"""librdkafka's default, and the broker's of the protocol `consumer`."""


@dataclass(frozen=True, slots=True)
class MemberSettings:
    """Durations are seconds."""

    client: Settings
    start: Start
    new_protocol: bool
    """Whether the broker assigns."""
    cooperative: bool
    """Whether partitions come and go one by one, and not all of them with each rebalance."""
    read_ahead: int
    read_ahead_bytes: int
    revoke_bound: float
    instance: str | None
    """The name of a static member, which keeps its partitions when it closes."""
    session: float | None
    """How long its partitions wait for it. None: the broker decides."""


def member_settings(
    given: Mapping[str, object], group: str, *, read_ahead: int, read_ahead_bytes: int, revoke_bound: float
) -> MemberSettings:
    """Raises SettingsError for a setting that would commit what was not handled, or that contradicts another."""
    refuse_broken_promises("consumer", given, _PROMISES)
    for name, value in (("max_poll_records", read_ahead), ("max_poll_bytes", read_ahead_bytes)):
        if value < 1:
            raise SettingsError(f"setting {name!r} of the Kafka consumer: got {value}, takes 1 or more")
    if revoke_bound < 0:
        raise SettingsError(f"setting 'revoke_bound' of the Kafka consumer: got {revoke_bound:g}, takes seconds")
    if not group:
        raise SettingsError("setting 'group' of the Kafka consumer: got nothing, takes the group's name")
    other = given.get("group.id", group)
    if other != group:
        raise SettingsError(
            f"setting 'group.id' of the Kafka consumer: got {other!r}, takes {group!r} as given by group="
        )
    client = COMMON | _DEFAULTS | dict(given) | {"group.id": group}
    new_protocol = str(given.get("group.protocol", "classic")).lower() == "consumer"
    if new_protocol:
        _refuse_what_the_broker_decides(given)
    else:
        client.setdefault("partition.assignment.strategy", _STRATEGY)
    start = _start(client)
    spare = _spare_milliseconds(given, revoke_bound)
    client.setdefault("socket.timeout.ms", max(1000, min(_SOCKET_TIMEOUT, spare // 2)))
    instance = given.get("group.instance.id")
    return MemberSettings(
        client,
        start,
        new_protocol,
        new_protocol or "cooperative" in str(client["partition.assignment.strategy"]),
        read_ahead,
        read_ahead_bytes,
        revoke_bound,
        str(instance) if instance else None,
        None if new_protocol else whole_number(given, "session.timeout.ms", _SESSION) / 1000,
    )


def _start(client: Settings) -> Start:
    """Where to begin without an offset. librdkafka itself is told to stop and say so."""
    name = "auto.offset.reset" if "auto.offset.reset" in client else "topic.auto.offset.reset"
    got = client.pop(name, "earliest")
    client["auto.offset.reset"] = "error"
    start = _STARTS.get(str(got).strip().lower())
    if start is None:
        raise SettingsError(
            f"setting 'auto.offset.reset' of the Kafka consumer: got {got!r}, takes earliest, latest or error"
        )
    return start


def _refuse_what_the_broker_decides(given: Mapping[str, object]) -> None:
    for name, instead in _BROKERS.items():
        if name in given:
            raise SettingsError(
                f"setting {name!r} of the Kafka consumer: got {given[name]!r}, takes nothing with "
                f"group.protocol=consumer, where the broker decides; use {instead}"
            )


def _spare_milliseconds(given: Mapping[str, object], revoke_bound: float) -> int:
    """What the poll interval leaves beside the wait of a revoke, in which nobody polls."""
    interval = whole_number(given, "max.poll.interval.ms", _MAX_POLL_INTERVAL)
    if revoke_bound * 1000 >= interval:
        raise SettingsError(
            f"setting 'revoke_bound' of the Kafka consumer: got {revoke_bound:g} s, takes less than "
            f"max.poll.interval.ms ({interval / 1000:g} s): nobody polls while a revoke waits"
        )
    return interval - round(revoke_bound * 1000)
