"""What is done behind a committed offset, as the text that the group keeps beside the offset.

`quiesce1 <place> <offset> <held> <epoch> <runs>`: a checksum of where it belongs (cluster, group, topic, partition),
the offset that it stands beside, a checksum of the record there, the newest leader epoch of the partition that was read
(both `-` where it is not known), and the runs of `Beyond`, each as the distance from the one before and its length, in
bytes of seven bits each, deflated, in base64. A text that was copied to another place or offset means nothing there.
"""

import zlib
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from quiesce.inbox.beyond import Beyond, Run

LONGEST = 4000
"""Characters, at most. Brokers take 4096 unless their `offset.metadata.max.bytes` says otherwise."""

_MARK = "quiesce1"
_MOST = 1_000_000
"""Bytes that are inflated, at most: anybody who may commit may write such a text."""


@dataclass(frozen=True, slots=True)
class Where:
    """The place that a text is about. `cluster` is the cluster's id, None where the brokers tell none."""

    cluster: str | None
    group: str
    topic: str
    partition: int

    def __str__(self) -> str:
        parts = (self.cluster or "", self.group, self.topic, str(self.partition))
        return f"{zlib.crc32(chr(0).join(parts).encode()):08x}"


def written(beyond: Beyond, where: Where, epoch: int | None, longest: int = LONGEST) -> str:
    """The text; empty if nothing is done behind the offset. What there is no room for is left out, from the end."""
    while beyond:
        text = f"{_MARK} {where} {beyond.base} {_shown(beyond.held)} {_shown(epoch)} {_deflated(beyond)}"
        if len(text) <= longest:
            return text
        beyond = beyond.lower_half()
    return ""


def read(text: str | None, offset: int, where: Where) -> tuple[Beyond, int | None] | None:
    """What the text says is done behind this offset, and the newest epoch; None if it says nothing of it."""
    try:
        mark, place, base, held, epoch, deflated = (text or "").split(" ")
        if (mark, place, base) != (_MARK, str(where), str(offset)):
            return None
        inflated = zlib.decompressobj().decompress(b64decode(deflated, validate=True), _MOST)
        return Beyond(offset, tuple(_decoded(offset, inflated)), _number_or_none(held)), _number_or_none(epoch)
    except (ValueError, NotBase64, zlib.error):
        return None


def _shown(number: int | None) -> str:
    return "-" if number is None else str(number)


def _number_or_none(shown: str) -> int | None:
    return None if shown == "-" else int(shown)


def _deflated(beyond: Beyond) -> str:
    # Few different numbers in no order: what looks for repetitions needs a third more.
    deflate = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS, zlib.DEF_MEM_LEVEL, zlib.Z_HUFFMAN_ONLY)
    return b64encode(deflate.compress(bytes(_encoded(beyond))) + deflate.flush()).decode()


def _encoded(beyond: Beyond) -> Iterator[int]:
    last = beyond.base
    for begin, end in beyond.runs:
        yield from _number(begin - last)
        yield from _number(end - begin)
        last = end


def _number(value: int) -> Iterator[int]:
    while value > 127:
        yield value & 127 | 128
        value >>= 7
    yield value


def _decoded(base: int, encoded: bytes) -> Iterator[Run]:
    """Whole runs only: the rest may have been cut off."""
    numbers = _numbers(encoded)
    last = base
    for distance, length in zip(numbers, numbers, strict=False):
        yield last + distance, last + distance + length
        last += distance + length


def _numbers(encoded: Iterable[int]) -> Iterator[int]:
    value = shift = 0
    for byte in encoded:
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            yield value
            value = shift = 0
        elif shift > 63:
            raise ValueError("no offset is that large")
