"""What clients in other languages may send and confluent-kafka's producer does not: by librdkafka's own functions."""

import ctypes

from mock_cluster import library

_TOPIC, _VALUE, _MSGFLAGS, _HEADERS, _END = 1, 4, 7, 10, 0
_COPY = 2
_BOUND = 15_000


def produce_with_header(bootstrap: str, topic: str, value: bytes, name: bytes, header: bytes) -> None:
    """A record with a header whose name may be any bytes."""
    rdkafka = library()
    for function in ("rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_headers_new"):
        getattr(rdkafka, function).restype = ctypes.c_void_p
    conf = ctypes.c_void_p(rdkafka.rd_kafka_conf_new())
    rdkafka.rd_kafka_conf_set(conf, b"bootstrap.servers", bootstrap.encode(), None, 0)
    client = ctypes.c_void_p(rdkafka.rd_kafka_new(0, conf, None, 0))
    headers = ctypes.c_void_p(rdkafka.rd_kafka_headers_new(1))
    size = ctypes.c_ssize_t
    rdkafka.rd_kafka_header_add(headers, name, size(len(name)), header, size(len(header)))
    error = rdkafka.rd_kafka_producev(
        client,
        *(ctypes.c_int(_TOPIC), ctypes.c_char_p(topic.encode())),
        *(ctypes.c_int(_VALUE), ctypes.c_char_p(value), ctypes.c_size_t(len(value))),
        *(ctypes.c_int(_MSGFLAGS), ctypes.c_int(_COPY)),
        *(ctypes.c_int(_HEADERS), headers),
        ctypes.c_int(_END),
    )
    assert error == 0
    assert rdkafka.rd_kafka_flush(client, _BOUND) == 0
    rdkafka.rd_kafka_destroy(client)
