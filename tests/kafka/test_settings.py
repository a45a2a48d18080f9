"""Which settings reach librdkafka, and which are refused."""

import pytest

from quiesce.errors import SettingsError
from quiesce.kafka import KafkaPublisher, KafkaSource
from quiesce.kafka.settings import consumer_settings, given_settings, producer_settings
from quiesce.lifecycle.phases import Part


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("acks", 1),
        ("acks", "0"),
        ("request.required.acks", "1"),
        ("enable.idempotence", False),
        ("enable.idempotence", "false"),
        ("message.timeout.ms", 30_000),
        ("delivery.timeout.ms", "1"),
        ("retries", 3),
        ("message.send.max.retries", 0),
        ("partitioner", "random"),
        ("partitioner", "consistent_random"),
        ("queuing.strategy", "lifo"),
        ("delivery.report.only.error", True),
        ("transactional.id", "t"),
        ("default.topic.config", {"acks": 1}),
        ("on_delivery", print),
        ("error_cb", print),
        ("logger", None),
    ],
)
def test_a_producer_setting_that_breaks_a_promise_is_refused(setting: str, value: object) -> None:
    with pytest.raises(SettingsError, match=setting) as refused:
        KafkaPublisher({"bootstrap.servers": "localhost:1", setting: value})
    assert "takes" in str(refused.value)
    assert repr(value) in str(refused.value)
    with pytest.raises(SettingsError, match=setting):
        KafkaPublisher("localhost:1", settings={setting: value})


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("enable.auto.commit", True),
        ("enable.auto.commit", "true"),
        ("enable.auto.commit", "True"),
        ("enable.auto.commit", 1),
        ("enable.auto.commit", "1"),
        ("enable.auto.commit", "t"),
        ("enable.auto.commit", "perhaps"),
        ("auto.commit.enable", "true"),
        ("enable.auto.offset.store", True),
        ("enable.auto.offset.store", " TRUE "),
        ("default.topic.config", {}),
        ("on_commit", print),
        ("error_cb", print),
    ],
)
def test_a_consumer_setting_that_commits_by_itself_is_refused(setting: str, value: object) -> None:
    with pytest.raises(SettingsError, match=setting):
        KafkaSource({"bootstrap.servers": "localhost:1", setting: value}, "t", group="g")


def test_a_setting_that_keeps_the_promise_is_taken() -> None:
    KafkaPublisher(
        {
            "bootstrap.servers": "localhost:1",
            "acks": -1,
            "enable.idempotence": "true",
            "message.timeout.ms": "0",
            "partitioner": "murmur2",
            "delivery.report.only.error": "false",
        }
    )
    KafkaSource(
        {"bootstrap.servers": "localhost:1", "enable.auto.commit": "False", "enable.auto.offset.store": 0},
        "t",
        group="g",
    )


def test_the_promises_are_what_librdkafka_is_given() -> None:
    producer = producer_settings({"bootstrap.servers": "localhost:1", "security.protocol": "SASL_SSL"})
    assert producer["acks"] == "all"
    assert producer["enable.idempotence"] is True
    assert producer["message.timeout.ms"] == 0
    assert producer["partitioner"] == "murmur2_random"
    assert producer["security.protocol"] == "SASL_SSL"
    # An alias that says the same must not come behind ours and win.
    aliases = producer_settings({"request.required.acks": "all", "delivery.timeout.ms": 0})
    assert not {"request.required.acks", "delivery.timeout.ms"} & aliases.keys()
    consumer = consumer_settings({"bootstrap.servers": "localhost:1"}, "g")
    assert consumer["enable.auto.commit"] is False
    assert consumer["enable.auto.offset.store"] is False
    assert consumer["auto.offset.reset"] == "earliest"
    assert consumer["group.id"] == "g"


@pytest.mark.parametrize("nothing", ["", "  ", {}, {"bootstrap.servers": None}, {"client.id": "x"}])
def test_an_address_is_needed(nothing: str | dict[str, object]) -> None:
    with pytest.raises(SettingsError, match=r"bootstrap\.servers"):
        KafkaPublisher(nothing)
    with pytest.raises(SettingsError, match=r"bootstrap\.servers"):
        KafkaSource(nothing, "t", group="g")


def test_more_settings_win_over_the_shared_ones() -> None:
    shared = {"bootstrap.servers": "localhost:1", "client.id": "a"}
    assert given_settings(shared, {"client.id": "b"})["client.id"] == "b"
    assert shared["client.id"] == "a"


def test_group_topics_and_bounds_are_checked() -> None:
    with pytest.raises(SettingsError, match="group"):
        KafkaSource("localhost:1", "t", group="")
    with pytest.raises(SettingsError, match=r"group\.id"):
        KafkaSource({"bootstrap.servers": "localhost:1", "group.id": "a"}, "t", group="b")
    with pytest.raises(SettingsError, match="topics"):
        KafkaSource("localhost:1", group="g")
    with pytest.raises(SettingsError, match="revoke_bound"):
        KafkaSource("localhost:1", "t", group="g", settings={"max.poll.interval.ms": 5000})


@pytest.mark.parametrize("secret", ["sasl.password", "ssl.key.password", "ssl.key.pem"])
async def test_a_secret_is_not_shown(secret: str) -> None:
    publisher = KafkaPublisher({"bootstrap.servers": "localhost:1", secret: "hunter2", "acks": "all"})
    assert "hunter2" not in repr(publisher)


async def test_what_librdkafka_itself_refuses_is_a_settings_error() -> None:
    with pytest.raises(SettingsError, match=r"retry\.backoff\.ms"):
        await KafkaPublisher({"bootstrap.servers": "localhost:1", "retry.backoff.ms": "soon"}).open()
    with pytest.raises(SettingsError, match=r"no\.such\.setting"):
        await KafkaSource({"bootstrap.servers": "localhost:1", "no.such.setting": 1}, "t", group="g").open()


async def test_what_is_no_value_at_all_is_a_settings_error() -> None:
    with pytest.raises(SettingsError):
        await KafkaPublisher({"bootstrap.servers": "localhost:1", "linger.ms": object()}).open()
    with pytest.raises(SettingsError):
        await KafkaSource({"bootstrap.servers": "localhost:1", "fetch.min.bytes": object()}, "t", group="g").open()
    with pytest.raises(SettingsError, match=r"batch\.size"):
        KafkaPublisher({"bootstrap.servers": "localhost:1", "batch.size": "large"})
    with pytest.raises(SettingsError, match=r"max\.poll\.interval\.ms"):
        KafkaSource({"bootstrap.servers": "localhost:1", "max.poll.interval.ms": "long"}, "t", group="g")


def test_names_tell_what_is_closed() -> None:
    publisher = KafkaPublisher("localhost:1")
    assert (publisher.name, publisher.part) == ("kafka-producer", Part.PRODUCERS)
    source = KafkaSource("localhost:1", "t", group="billing")
    assert "billing" in source.name
    assert source.part is Part.PRODUCERS
