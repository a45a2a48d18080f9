"""Sends dead letters out again, each behind the one of its key before it, and marks those that went."""

import asyncio
import time
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from quiesce.errors import Unavailable
from quiesce.inbox.record import Record
from quiesce.inbox.redriven import BY, MARK, mark
from quiesce.inbox.retry_headers import for_redrive, origin
from quiesce.kafka.dead_reader import Shelf
from quiesce.kafka.record_client import Outgoing
from quiesce.kafka.record_writer import RecordRefused, RecordTooLarge, RecordWriter, WrongTopic
from quiesce.lifecycle.deadline import Deadline

_ACK = 30.0
"""Seconds for the acks of a piece, and of its mark."""
_LONGEST_NAME = 200
"""Bytes of a name that stand with a mark."""


@dataclass(slots=True)
class Sent:
    """What became of some letters. Those that are in neither list were not sent, or may not have been."""

    gone: list[Record] = field(default_factory=list)
    refused: list[tuple[Record, str]] = field(default_factory=list)
    """With the reason, which will be the same next time."""
    failed: Unavailable | None = None
    """Why the rest was not sent."""


class DeadSender:
    """Of one redrive. `to`: see `Plan`."""

    def __init__(self, writer: RecordWriter, to: str | None) -> None:
        self._writer = writer
        self._to = to

    async def send(self, letters: Sequence[Record]) -> Sent:
        """Sends a piece; different keys at once. Returns when all that went is acked."""
        deadline = Deadline(time.monotonic() + _ACK)
        told = await asyncio.gather(
            *(self._in_order(of_key, deadline) for of_key in _by_key(letters)), return_exceptions=True
        )
        piece = Sent()
        for sent in told:
            if isinstance(sent, BaseException):
                raise sent
            piece.gone += sent.gone
            piece.refused += sent.refused
            piece.failed = piece.failed or sent.failed
        return piece

    async def _in_order(self, letters: Sequence[Record], deadline: Deadline) -> Sent:
        """Letters of one key, each once the one before it is acked: else one that is acked could overtake one that is
        not, and that one would go behind it at the next try."""
        sent = Sent()
        for letter in letters:
            try:
                await self._send(letter, deadline)
            except (RecordTooLarge, RecordRefused) as error:
                sent.refused.append((letter, str(error)))
            except Unavailable as error:
                if isinstance(error, WrongTopic) and self._to is None:
                    # Others came from elsewhere, and must not wait for it.
                    sent.refused.append((letter, str(error)))
                    continue
                sent.failed = error
                break
            else:
                sent.gone.append(letter)
        return sent

    async def _send(self, letter: Record, deadline: Deadline) -> None:
        place = origin(letter)
        topic, partition = self._to or place.topic, None
        if self._to is None and place.partition < (await self._writer.know(topic, deadline)).partitions:
            # The producer may have chosen it by another rule than ours.
            partition = place.partition
        identity = (letter.topic, letter.partition, letter.offset)
        headers = for_redrive(letter, topic, keep_origin=self._to is not None)
        outgoing = Outgoing(identity, topic, letter.key, letter.value, headers, partition)
        await self._writer.write(outgoing, deadline)

    async def mark(self, shelf: Shelf, letters: Sequence[Record], said_by: str) -> int:
        """Says of letters of a shelf that they are dealt with, and who says so. Returns the offset of the mark.

        Raises:
            Unavailable: it has no ack.
        """
        headers = [(MARK, mark(letter.offset for letter in letters)), (BY, said_by.encode()[:_LONGEST_NAME])]
        identity = ("mark", shelf.number, letters[0].offset)
        outgoing = Outgoing(identity, shelf.topic, None, None, headers, shelf.number)
        return await self._writer.write(outgoing, Deadline(time.monotonic() + _ACK))


def _by_key(letters: Sequence[Record]) -> Iterable[Sequence[Record]]:
    """Those without a key, each by itself."""
    keyed: dict[Hashable, list[Record]] = {}
    for letter in letters:
        keyed.setdefault(letter.offset if letter.key is None else letter.key, []).append(letter)
    return keyed.values()
