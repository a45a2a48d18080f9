"""How long a topic keeps its records, asked of a real broker."""

from math import inf

import pytest

from quiesce.errors import SettingsError, Unavailable
from quiesce.inbox.retention import Kept
from quiesce.kafka import TopicRetention
from quiesce_pytest import MakeTopic

HOUR = 3_600_000


async def test_the_longest_of_several_topics_counts(kafka: str, topic: MakeTopic) -> None:
    one = topic("one", 1, **{"retention.ms": str(HOUR), "segment.ms": str(HOUR)})
    two = topic(
        "two", 1, **{"retention.ms": str(2 * HOUR), "segment.ms": str(HOUR), "cleanup.policy": "compact,delete"}
    )
    kept = await TopicRetention(kafka, one, two)()
    assert kept == Kept(7200.0, f"topic {two}", f"retention.ms={2 * HOUR}", longer=3600.0)


async def test_compaction_and_no_limit_are_for_ever(kafka: str, topic: MakeTopic) -> None:
    compacted = topic("compacted", 1, **{"cleanup.policy": "compact", "retention.ms": str(HOUR)})
    unlimited = topic("unlimited", 1, **{"retention.ms": "-1"})
    limited = topic("limited", 1, **{"retention.ms": str(HOUR)})
    assert await TopicRetention(kafka, limited, compacted)() == Kept(
        inf, f"topic {compacted}", "cleanup.policy=compact"
    )
    assert await TopicRetention(kafka, limited, unlimited)() == Kept(inf, f"topic {unlimited}", "retention.ms=-1")


async def test_a_missing_topic_and_silent_brokers_are_told_apart(kafka: str) -> None:
    with pytest.raises(SettingsError, match="topic no-such-topic: does not exist"):
        await TopicRetention(kafka, "no-such-topic")()
    with pytest.raises(Unavailable, match="the brokers do not answer"):
        await TopicRetention("127.0.0.1:1", "products", timeout=0.5)()
    with pytest.raises(SettingsError, match="takes one topic at least"):
        TopicRetention(kafka)
