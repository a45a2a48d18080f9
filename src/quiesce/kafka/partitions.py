"""Which partition a key goes to: reckoned only while partitions of a topic have to be told apart. Pure."""

import struct
from functools import lru_cache

_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_32_BITS = 0xFFFFFFFF
_REMEMBERED = 50_000
"""Keys: a hash takes some ten microseconds in Python."""


def murmur2(key: bytes) -> int:
    """The hash that Kafka's Java client, and librdkafka's `murmur2_random`, take of a key: 32 bits, no sign."""
    length = len(key)
    words = length // 4
    found = _SEED ^ length
    for word in struct.unpack_from(f"<{words}I", key):
        mixed = (word * _MULTIPLIER) & _32_BITS
        found = ((found * _MULTIPLIER) & _32_BITS) ^ (((mixed ^ (mixed >> 24)) * _MULTIPLIER) & _32_BITS)
    if rest := key[words * 4 :]:
        found = ((found ^ int.from_bytes(rest, "little")) * _MULTIPLIER) & _32_BITS
    found = ((found ^ (found >> 13)) * _MULTIPLIER) & _32_BITS
    return found ^ (found >> 15)


@lru_cache(_REMEMBERED)
def _positive_hash(key: str) -> int:
    return murmur2(key.encode()) & 0x7FFFFFFF


def partition_of(key: str, partitions: int) -> int:
    """The partition of a key on a topic with so many partitions."""
    return _positive_hash(key) % partitions
