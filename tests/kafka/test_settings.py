"""Which settings reach librdkafka, and which are refused."""

import pytest

from quiesce.errors import SettingsError
from quiesce.kafka import KafkaPublisher, KafkaSource
from quiesce.kafka.consumer_settings import MemberSettings, member_settings
from quiesce.kafka.positions import Start
from quiesce.kafka.settings import given_settings, producer_settings
from quiesce.lifecycle.phases import Part


def of_member(given: dict[str, object]) -> MemberSettings:
    address = {"bootstrap.servers": "localhost:1"}
    return member_settings(address | given, "g", read_ahead=1, read_ahead_bytes=1, revoke_bound=5.0)


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
    consumer = of_member({})
    assert consumer.client["enable.auto.commit"] is False
    assert consumer.client["enable.auto.offset.store"] is False
    assert consumer.client["partition.assignment.strategy"] == "cooperative-sticky"
    assert consumer.client["group.id"] == "g"
    assert consumer.cooperative
    # It is told to stop where an offset lacks, so that we see it.
    assert consumer.client["auto.offset.reset"] == "error"
    assert consumer.start is Start.EARLIEST


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
    with pytest.raises(SettingsError, match="revoke_bound"):
        KafkaSource("localhost:1", "t", group="g", revoke_bound=-1)
    with pytest.raises(SettingsError, match="max_poll_records"):
        KafkaSource("localhost:1", "t", group="g", max_poll_records=0)
    with pytest.raises(SettingsError, match="max_poll_bytes"):
        KafkaSource("localhost:1", "t", group="g", max_poll_bytes=0)


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


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("session.timeout.ms", 6000),
        ("heartbeat.interval.ms", 100),
        ("partition.assignment.strategy", "cooperative-sticky"),
        ("group.protocol.type", "consumer"),
    ],
)
def test_what_the_broker_decides_is_refused_with_a_word_where_to_set_it(setting: str, value: object) -> None:
    of_member({setting: value})
    with pytest.raises(SettingsError, match=setting) as refused:
        of_member({setting: value, "group.protocol": "consumer"})
    assert "group.protocol=consumer" in str(refused.value)
    assert "use " in str(refused.value)


def test_where_the_broker_assigns_no_strategy_is_given() -> None:
    found = of_member({"group.protocol": "consumer", "group.remote.assignor": "range"})
    assert "partition.assignment.strategy" not in found.client
    assert found.cooperative
    assert found.session is None


def test_an_eager_strategy_is_taken() -> None:
    assert not of_member({"partition.assignment.strategy": "range,roundrobin"}).cooperative


@pytest.mark.parametrize(
    ("got", "start"),
    [("earliest", Start.EARLIEST), ("latest", Start.LATEST), ("end", Start.LATEST), ("error", Start.REFUSE)],
)
def test_where_to_begin_is_ours_to_decide(got: str, start: Start) -> None:
    found = of_member({"auto.offset.reset": got})
    assert found.start is start
    assert found.client["auto.offset.reset"] == "error"


def test_where_to_begin_takes_known_words_only() -> None:
    with pytest.raises(SettingsError, match=r"auto\.offset\.reset.*'sometimes'.*earliest"):
        of_member({"auto.offset.reset": "sometimes"})


def test_a_client_that_has_read_enough_ahead_looks_again_soon() -> None:
    # librdkafka's own second is far longer than it takes to handle what was read ahead.
    assert of_member({}).client["fetch.queue.backoff.ms"] == 50
    assert of_member({"fetch.queue.backoff.ms": 7}).client["fetch.queue.backoff.ms"] == 7


def test_a_static_member_is_known_with_its_session() -> None:
    found = of_member({"group.instance.id": "orders-1", "session.timeout.ms": "9000"})
    assert (found.instance, found.session) == ("orders-1", 9.0)
    assert of_member({}).instance is None


def test_a_commit_that_hangs_and_a_revoke_that_waits_fit_into_the_poll_interval() -> None:
    assert of_member({}).client["socket.timeout.ms"] == 10_000
    assert of_member({"max.poll.interval.ms": 15_000}).client["socket.timeout.ms"] == 5_000
    assert of_member({"socket.timeout.ms": 60_000}).client["socket.timeout.ms"] == 60_000
