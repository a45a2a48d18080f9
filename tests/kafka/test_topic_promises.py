"""What `doctor` says of topics: on a real broker, and by the figures that one broker cannot have."""

from collections.abc import Callable

import pytest

from quiesce.errors import SettingsError
from quiesce.kafka.topic_promises import _judged, _Topic, topic_promises
from quiesce.testing.kafka import LocalKafka
from quiesce_pytest import MakeTopic

GOOD = {"min.insync.replicas": "2", "max.message.bytes": "1048588", "unclean.leader.election.enable": "false"}


@pytest.mark.parametrize(
    ("replicas", "in_sync", "change", "verdict", "told"),
    [
        (3, 3, {}, "ok", "6 partitions, 3 replicas, min.insync.replicas 2, max.message.bytes 1,048,588"),
        (3, 2, {}, "ok", "6 partitions"),
        (2, 2, {}, "warn", "takes no event while one broker is away"),
        (3, 1, {}, "bad", "only 1 replicas are in sync: takes no event now"),
        (1, 1, {}, "bad", "1 replicas, min.insync.replicas 2: takes no event"),
        (3, 3, {"min.insync.replicas": "1"}, "bad", "min.insync.replicas is 1"),
        (3, 3, {"unclean.leader.election.enable": "true"}, "bad", "unclean.leader.election.enable is on"),
        (3, 3, {"max.message.bytes": "900100"}, "bad", "max.message.bytes is 900,100"),
        (3, 3, {"max.message.bytes": "900512"}, "ok", "max.message.bytes 900,512"),
    ],
)
def test_figures(replicas: int, in_sync: int, change: dict[str, str], verdict: str, told: str) -> None:
    check = _judged("orders", _Topic(6, 0, replicas, in_sync), {**GOOD, **change}, 900_000)
    assert check.verdict == verdict
    assert told in check.found
    assert bool(check.advice) == (verdict != "ok")


def test_partitions_without_a_leader() -> None:
    check = _judged("orders", _Topic(6, 2, 3, 0), GOOD, 900_000)
    assert (check.verdict, "2 partitions have no leader" in check.found) == ("bad", True)


@pytest.mark.needs("kafka")
async def test_a_real_broker_and_no_topic_is_made_by_asking(kafka: str, topic: MakeTopic) -> None:
    small = topic("small", 2, **{"max.message.bytes": "5000", "unclean.leader.election.enable": "true"})
    strict = topic("strict", 3, **{"min.insync.replicas": "2"})
    for _ in range(2):
        brokers, missing, of_small, of_strict = await topic_promises(kafka, ["missing-for-ever", small, strict])
        assert (brokers.verdict, brokers.found) == ("ok", "1 answer")
        assert (missing.verdict, missing.advice) == ("bad", "Create it: the relay never does")
        assert of_small.found.startswith("2 partitions, 1 replicas; min.insync.replicas is 1")
        assert "unclean" in of_small.found
        assert "max.message.bytes is 5,000" in of_small.found
        assert "1 replicas, min.insync.replicas 2: takes no event" in of_strict.found
    enough = (await topic_promises(kafka, [small], max_event_bytes=1000))[1]
    assert "max.message.bytes" not in enough.found
    (as_made,) = (await topic_promises(kafka, [strict], partitions={strict: 3, small: 7}))[1:]
    assert "was to have" not in as_made.found
    (grown,) = (await topic_promises(kafka, [strict], partitions={strict: 2}))[1:]
    assert (grown.verdict, "it was to have 2 partitions: with another number keys have moved" in grown.found) == (
        "bad",
        True,
    )
    nothing = (await topic_promises(kafka, []))[1]
    assert (nothing.name, nothing.verdict) == ("topics", "warn")


async def test_nobody_answers_and_wrong_settings() -> None:
    (brokers,) = await topic_promises("127.0.0.1:1", ["orders"], timeout=0.5)
    assert (brokers.name, brokers.verdict) == ("brokers", "bad")
    with pytest.raises(SettingsError, match=r"no\.such\.thing"):
        await topic_promises({"bootstrap.servers": "127.0.0.1:1", "no.such.thing": "1"}, ["orders"])


@pytest.mark.needs("kafka")
@pytest.mark.xdist_group("kafka with users")
async def test_without_the_right_to_ask_it_says_so(own_kafka: Callable[..., LocalKafka]) -> None:
    users = {"writer": "w-secret"}
    broker = own_kafka(users=users)
    broker.create_topic("guarded")
    broker.address.allow("writer", "describe", "guarded")
    login = {
        "bootstrap.servers": broker.sasl_bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "writer",
        "sasl.password": users["writer"],
    }
    _, check = await topic_promises(login, ["guarded"])
    assert (check.verdict, "may not be looked at" in check.found) == ("warn", True)
