"""What is done behind a committed offset, as the text that the group keeps beside the offset.

`quiesce1 <cluster> <offset> <epoch> <bits>`: a checksum of the cluster's id, the offset that it belongs to, the newest
leader epoch of the partition that was read (`-` where brokers tell none), and the bits of `Beyond`, from the lowest
byte on, deflated, in base64. What does not carry the same offset was copied from elsewhere and means nothing.
"""

import zlib
from base64 import b64decode, b64encode
from binascii import Error as NotBase64

from quiesce.inbox.beyond import Beyond

LONGEST = 4000
"""Characters, at most. Brokers take 4096 unless their `offset.metadata.max.bytes` says otherwise."""

_MARK = "quiesce1"
_MOST = 1_000_000
"""Bytes that are inflated, at most: anybody who may commit may write such a text."""


def written(beyond: Beyond, cluster: str | None, epoch: int | None, longest: int = LONGEST) -> str:
    """The text; empty if nothing is done behind the offset. What there is no room for is left out, from the end."""
    while beyond:
        bits = beyond.bits.to_bytes(beyond.bits.bit_length() // 8 + 1, "little")
        deflated = b64encode(zlib.compress(bits, 9)).decode()
        text = f"{_MARK} {_checksum(cluster)} {beyond.base} {'-' if epoch is None else epoch} {deflated}"
        if len(text) <= longest:
            return text
        beyond = beyond.lower_half()
    return ""


def read(text: str | None, offset: int, cluster: str | None) -> tuple[Beyond, int | None] | None:
    """What the text says is done behind this offset, and the newest epoch; None if it says nothing of it."""
    try:
        mark, checksum, base, epoch, deflated = (text or "").split(" ")
        if (mark, checksum, base) != (_MARK, _checksum(cluster), str(offset)):
            return None
        bits = zlib.decompressobj().decompress(b64decode(deflated, validate=True), _MOST)
        return Beyond(offset, int.from_bytes(bits, "little")), None if epoch == "-" else int(epoch)
    except (ValueError, NotBase64, zlib.error):
        return None


def _checksum(cluster: str | None) -> str:
    return f"{zlib.crc32((cluster or '').encode()):08x}"
