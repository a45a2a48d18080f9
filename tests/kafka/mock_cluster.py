"""librdkafka's own mock brokers, for answers that a healthy broker does not give on request.

Everything that a real broker can show is tested on a real one. This speaks to the library that
confluent-kafka brings, by ctypes, since confluent-kafka does not pass this part of it on.
"""

import ctypes
from pathlib import Path
from types import TracebackType
from typing import Self

import confluent_kafka

PRODUCE = 0
OFFSET_COMMIT = 8
OFFSET_FETCH = 9
INIT_PRODUCER_ID = 22
_PRODUCER = 0


def library() -> ctypes.CDLL:
    libs = Path(confluent_kafka.__file__).parent.parent / "confluent_kafka.libs"
    library = ctypes.CDLL(str(next(libs.glob("librdkafka*.so*"))))
    library.rd_kafka_new.restype = ctypes.c_void_p
    library.rd_kafka_new.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t]
    library.rd_kafka_conf_new.restype = ctypes.c_void_p
    library.rd_kafka_conf_set.argtypes = [
        ctypes.c_void_p,
        ctypes.c_char_p,
        ctypes.c_char_p,
        ctypes.c_char_p,
        ctypes.c_size_t,
    ]
    library.rd_kafka_destroy.argtypes = [ctypes.c_void_p]
    library.rd_kafka_mock_cluster_new.restype = ctypes.c_void_p
    library.rd_kafka_mock_cluster_new.argtypes = [ctypes.c_void_p, ctypes.c_int]
    library.rd_kafka_mock_cluster_destroy.argtypes = [ctypes.c_void_p]
    library.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
    library.rd_kafka_mock_cluster_bootstraps.argtypes = [ctypes.c_void_p]
    library.rd_kafka_mock_topic_create.argtypes = [
        ctypes.c_void_p,
        ctypes.c_char_p,
        ctypes.c_int,
        ctypes.c_int,
    ]
    library.rd_kafka_mock_push_request_errors_array.argtypes = [
        ctypes.c_void_p,
        ctypes.c_int16,
        ctypes.c_size_t,
        ctypes.POINTER(ctypes.c_int),
    ]
    library.rd_kafka_mock_partition_push_request_errors.argtypes = [
        ctypes.c_void_p,
        ctypes.c_char_p,
        ctypes.c_int32,
        ctypes.c_int16,
        ctypes.c_size_t,
    ]
    library.rd_kafka_mock_topic_set_error.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int]
    library.rd_kafka_mock_set_apiversion.argtypes = [ctypes.c_void_p, ctypes.c_int16, ctypes.c_int16, ctypes.c_int16]
    library.rd_kafka_mock_broker_set_rtt.argtypes = [ctypes.c_void_p, ctypes.c_int32, ctypes.c_int]
    for power in (library.rd_kafka_mock_broker_set_down, library.rd_kafka_mock_broker_set_up):
        power.argtypes = [ctypes.c_void_p, ctypes.c_int32]
    library.rd_kafka_mock_group_initial_rebalance_delay_ms.argtypes = [ctypes.c_void_p, ctypes.c_int32]
    library.rd_kafka_mock_partition_set_leader.argtypes = [
        ctypes.c_void_p,
        ctypes.c_char_p,
        ctypes.c_int32,
        ctypes.c_int32,
    ]
    return library


class MockCluster:
    """Brokers inside this process. `answer` writes down the errors of the next requests of a kind."""

    def __init__(self, brokers: int = 1) -> None:
        self._library = library()
        config = self._library.rd_kafka_conf_new()
        self._library.rd_kafka_conf_set(config, b"log_level", b"0", None, 0)
        self._client = self._library.rd_kafka_new(_PRODUCER, config, None, 0)
        self._cluster = self._library.rd_kafka_mock_cluster_new(self._client, brokers)
        # Else the first member of a group waits 3 s for others.
        self._library.rd_kafka_mock_group_initial_rebalance_delay_ms(self._cluster, 100)

    @property
    def bootstrap(self) -> str:
        found: bytes = self._library.rd_kafka_mock_cluster_bootstraps(self._cluster)
        return found.decode()

    def create_topic(self, name: str, partitions: int = 1) -> str:
        self._library.rd_kafka_mock_topic_create(self._cluster, name.encode(), partitions, 1)
        return name

    def answer(self, request: int, *errors: int) -> None:
        codes = (ctypes.c_int * len(errors))(*errors)
        self._library.rd_kafka_mock_push_request_errors_array(self._cluster, request, len(errors), codes)

    def answer_for(self, topic: str, partition: int, request: int, *errors: int) -> None:
        """The errors of the next requests of a kind about this partition."""
        name = topic.encode()
        self._library.rd_kafka_mock_partition_push_request_errors(
            self._cluster, name, partition, request, len(errors), *map(ctypes.c_int, errors)
        )

    def set_topic_error(self, topic: str, error: int) -> None:
        """What brokers say when they are asked about this topic; 0: it is well."""
        self._library.rd_kafka_mock_topic_set_error(self._cluster, topic.encode(), error)

    def set_round_trip(self, seconds: float) -> None:
        """Every answer of every broker takes this long."""
        self._library.rd_kafka_mock_broker_set_rtt(self._cluster, -1, round(seconds * 1000))

    def set_down(self, broker: int = 1) -> None:
        """Its connections end, and it takes no new ones, until `set_up`."""
        self._library.rd_kafka_mock_broker_set_down(self._cluster, broker)

    def set_up(self, broker: int = 1) -> None:
        self._library.rd_kafka_mock_broker_set_up(self._cluster, broker)

    def set_leader(self, topic: str, partition: int, broker: int) -> None:
        """Broker -1: the partition has no leader."""
        # From version 10 on these brokers name the new leader when they refuse, and crash where there is none.
        self._library.rd_kafka_mock_set_apiversion(self._cluster, PRODUCE, 0, 9)
        self._library.rd_kafka_mock_partition_set_leader(self._cluster, topic.encode(), partition, broker)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._library.rd_kafka_mock_cluster_destroy(self._cluster)
        self._library.rd_kafka_destroy(self._client)
