"""Sending dead letters back to where they came from, or saying that they are dealt with."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from quiesce.errors import SettingsError
from quiesce.inbox.record import Record
from quiesce.inbox.retry_headers import CUT, origin
from quiesce.kafka.blocking import in_thread
from quiesce.kafka.dead_reader import DeadReader, Shelf
from quiesce.kafka.dead_selection import Selection
from quiesce.kafka.dead_sender import DeadSender
from quiesce.kafka.record_writer import RecordWriter
from quiesce.lifecycle.deadline import Deadline

PIECE = 100
"""Letters sent back before that is written down. After a crash so many may be sent back twice."""

_LEAVE = 5.0


@dataclass(slots=True)
class Progress:
    """How far it has come."""

    done: int = 0
    """Letters sent back, or dismissed; in a dry run those that would be."""
    left: int = 0
    """Letters that were looked at, and go on waiting: not chosen, or not come to."""
    refused: list[tuple[Record, str]] = field(default_factory=list)
    """Letters that cannot be sent back, with the reason. They go on waiting."""
    read_to_end: bool = False
    """Whether all letters have been looked at. If not, more may wait."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done with the chosen letters.

    Args:
        to: send them to this topic, by their key, and not to the topic and partition in which they were first read.
        dismiss: only mark them as dealt with.
        dry_run: do nothing, and count.
        rate: letters a second.
        limit: how many at most.
        said_by: who does it; it stands with the mark.

    Raises:
        SettingsError: the rate is not above 0; or `to` and `dismiss` are both given.
    """

    to: str | None = None
    dismiss: bool = False
    dry_run: bool = False
    rate: float | None = None
    limit: int | None = None
    said_by: str = ""

    def __post_init__(self) -> None:
        if self.rate is not None and not (self.rate > 0 and math.isfinite(self.rate)):
            raise SettingsError(f"rate: got {self.rate:g}, takes letters a second, more than 0")
        if self.to is not None and self.dismiss:
            raise SettingsError("to: got a topic for letters that are to be dismissed, takes one or the other")

    @property
    def piece(self) -> int:
        return PIECE if self.rate is None else max(1, min(PIECE, math.floor(self.rate)))


async def redrive(
    bootstrap_or_config: str | Mapping[str, object],
    topic: str,
    selection: Selection,
    plan: Plan,
    *,
    group: str | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> AsyncIterator[Progress]:
    """Sends the chosen letters of a dead-letter topic back, in order per key. Yields the progress after each piece.

    Each goes out with the same key, value, event id and own headers, so an inbox knows it. What went is marked in the
    dead-letter topic before the next piece goes. It goes once over what was dead when it began.

    `group`: in whose name it is committed how far the letters are dealt with; `<topic>.redrive` by default.
    `stopped`: asked before each piece, and while it first reads which letters wait.

    Raises:
        SettingsError: no such topic, or a right is missing.
        Unavailable: brokers do not answer, or there is no topic `to`. What was acked until then is marked.
    """
    if plan.to == topic:
        raise SettingsError(f"to: got {topic!r}, takes another topic than the one the letters are in")
    writer = RecordWriter(bootstrap_or_config)
    if not plan.dry_run:
        await writer.open()
    try:
        with DeadReader(bootstrap_or_config, topic, group=group) as reader:
            work = _Redrive(plan, selection, reader, writer)
            shelves = await in_thread("quiesce-kafka-dead", partial(reader.shelves, stopped=stopped))
            for shelf in shelves:
                async for progress in work.shelf(shelf, stopped):
                    yield progress
                if work.over or stopped():
                    break
            # There is none where it was stopped before it knew which letters wait.
            work.progress.read_to_end = work.shelves_read == len(shelves) > 0
            yield work.progress
    finally:
        await writer.close(Deadline(time.monotonic() + _LEAVE))


class _Redrive:
    """One redrive under way."""

    def __init__(self, plan: Plan, selection: Selection, reader: DeadReader, writer: RecordWriter) -> None:
        self._plan = plan
        self._selection = selection
        self._reader = reader
        self._sender = DeadSender(writer, plan.to)
        self._began = time.monotonic()
        self.progress = Progress()
        self.shelves_read = 0
        """To their end."""

    @property
    def over(self) -> bool:
        return self._plan.limit is not None and self.progress.done >= self._plan.limit

    async def shelf(self, shelf: Shelf, stopped: Callable[[], bool]) -> AsyncIterator[Progress]:
        """One partition of the topic."""
        waiting: int | None = None
        """The first letter that goes on waiting: so far all is dealt with."""
        behind = shelf.end
        pages = self._reader.letters(shelf)
        while page := await in_thread("quiesce-kafka-dead", partial(next, pages, None)):
            chosen = []
            for letter in page:
                if letter.offset in shelf.dealt_with:
                    continue
                matches = self._selection.matches(letter)
                if matches and not self._refuses(letter):
                    chosen.append(letter)
                    continue
                self.progress.left += not matches
                waiting = letter.offset if waiting is None else waiting
            while chosen and not self.over and not stopped():
                piece, chosen = self._split(chosen)
                at = await self._deal_with(shelf, piece)
                # Marks that come right behind are dealt with too; other letters may have come in between.
                behind += at == behind
                yield self.progress
            self.progress.left += len(chosen)
            if chosen:
                waiting = chosen[0].offset if waiting is None else min(waiting, chosen[0].offset)
            if stopped() or self.over:
                # What comes behind has not been looked at.
                waiting = page[-1].offset + 1 if waiting is None else waiting
                break
        else:
            self.shelves_read += 1
        if not self._plan.dry_run:
            # Some are refused only by the topic they are sent to.
            refused = (letter.offset for letter, _ in self.progress.refused if letter.partition == shelf.number)
            offset = min([behind if waiting is None else waiting, *refused])
            await in_thread("quiesce-kafka-dead", lambda: self._reader.commit(shelf, offset))

    def _split(self, chosen: list[Record]) -> tuple[list[Record], list[Record]]:
        size = self._plan.piece
        if self._plan.limit is not None:
            size = min(size, self._plan.limit - self.progress.done)
        return chosen[:size], chosen[size:]

    def _refuses(self, letter: Record) -> bool:
        """Whether it cannot be sent back; says so in the progress."""
        if self._plan.dismiss:
            return False
        why = ""
        if (cut := letter.header(CUT)) is not None:
            why = f"its {cut} had to be left out; all of it stood at {origin(letter)}"
        elif self._plan.to is None and origin(letter).topic == letter.topic:
            why = "it does not say where it came from: name a topic to send it to"
        if why:
            self.progress.refused.append((letter, why))
        return bool(why)

    async def _deal_with(self, shelf: Shelf, piece: Sequence[Record]) -> int | None:
        """Sends a piece back and marks what was acked. Returns the offset of the mark."""
        if self._plan.dry_run:
            self.progress.done += len(piece)
            return None
        gone, failed = piece, None
        if not self._plan.dismiss:
            sent = await self._sender.send(piece)
            gone, failed = sent.gone, sent.failed
            self.progress.refused += sent.refused
        at = await self._sender.mark(shelf, gone, self._plan.said_by) if gone else None
        self.progress.done += len(gone)
        if failed is not None:
            raise failed
        if self._plan.rate is not None:
            await asyncio.sleep(max(0.0, self._began + self.progress.done / self._plan.rate - time.monotonic()))
        return at
