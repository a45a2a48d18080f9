"""Which records may begin now, and which offsets may be committed. It decides; whoever uses it waits.

Records come in by `deliver`, begin by `next`, and end by `ended`. Records of one key are begun one after the
other, in their order; so are those without a key, per partition, unless they are said to be free of order. A record
that has to wait holds up its key and nothing else.
"""

from collections import deque
from collections.abc import Callable, Sequence
from itertools import groupby
from math import inf
from operator import attrgetter

from quiesce.inbox.delivered import Delivered, KeyQueue
from quiesce.inbox.key_queues import KeyQueues
from quiesce.inbox.offsets import Offsets, to_commit
from quiesce.inbox.piece import Handled, Outcome, Piece, PutBack
from quiesce.inbox.record import Record, TopicPartition

Ours = Callable[[int, TopicPartition], bool]
"""Whether work handed out under a number may still be committed for the partition."""

AHEAD_BYTES = 16_000_000
"""A thousand records of a megabyte are too much to hold for each partition. As many bytes as a source reads ahead."""

_SOURCE = attrgetter("source")


class Window:
    """All that a consumer has, from its delivery until it is done.

    Args:
        batch: most records of a piece, or None: one record a piece.
        ahead: records of one partition, counted from the first that is not done, from which on no more are wanted.
        ahead_bytes: the same in bytes of their values.
        free_nulls: whether records without a key are free of order.
    """

    def __init__(
        self, *, batch: int | None, ahead: int, ahead_bytes: int = AHEAD_BYTES, free_nulls: bool = False
    ) -> None:
        self.parts: dict[TopicPartition, Delivered] = {}
        self.in_hand: set[Piece] = set()
        self.left = 0
        """Records delivered and not done."""
        self._batch = batch
        self._ahead = ahead
        self._ahead_bytes = ahead_bytes
        self._free_nulls = free_nulls
        self._turns: deque[Delivered] = deque()
        self._key_queues = KeyQueues()
        self._suspected: set[Delivered] = set()
        self._alone = False

    # Records come and go.

    def deliver(self, records: Sequence[Record], number: int, ours: Ours, *, checked: bool = True) -> list[Delivered]:
        """Adds records that were handed out under the number. Unless `checked`, none begins before `check`.

        Returns what was thrown away for it: partitions that went and came back in between.
        """
        stale: list[Delivered] = []
        for source, run in groupby(records, _SOURCE):
            those = list(run)
            part = self.parts.get(source)
            if part is not None and (part.leaving or (number != part.newest and not ours(part.newest, source))):
                stale.append(part)
                self.drop(part)
                part = None
            if part is None:
                part = Delivered(source, number, those[0].offset, free_nulls=self._free_nulls)
                self.parts[source] = part
                self._turns.append(part)
            if not checked:
                part.unchecked_from = min(part.unchecked_from, those[0].offset)
            self.left += part.deliver(those, number)
            count, size = part.extent()
            part.full = count >= self._ahead or size >= self._ahead_bytes
        return stale

    def check(self, *, suspect: bool) -> None:
        """What was delivered unchecked may begin; if it is suspect, then one by one, with nothing else in hand."""
        for part in self.parts.values():
            if part.unchecked_from < inf:
                part.unchecked_from = inf
                if suspect:
                    part.suspect_until = part.numbers.get(part.newest, part.end)
                    if not part.leaving:
                        self._suspected.add(part)

    def leave(self, part: Delivered, now: float) -> None:
        """It is being taken away: what waits below the last record that has begun still begins, and nothing above.

        Otherwise a record that waits behind its key would make all come again that was done above it.
        """
        self._key_queues.look(now)
        part.leaving = True
        part.finish_below = part.begun
        self._suspected.discard(part)
        self.left -= part.hand_back()

    def begin_no_more(self, part: Delivered) -> None:
        """There is no time left: nothing of one that is leaving begins any more."""
        part.finish_below = -inf
        self.left -= part.hand_back()

    def drop(self, part: Delivered) -> None:
        """It is not ours any more, or was put away: what still ends of it changes nothing."""
        if part.dropped:
            return
        part.dropped = True
        self.left -= part.left
        self._suspected.discard(part)
        self._turns.remove(part)
        del self.parts[part.source]

    # Beginning.

    def next(self, now: float) -> Piece | None:
        """The next piece that may begin now. It is in hand from then on."""
        if self._alone:
            return None
        self._key_queues.look(now)
        if self._suspected and (suspect := self._due_suspect()) is not None:
            if self.in_hand:
                # It begins once they are over. Until then nothing else does, or it never would.
                return None
            part, of_key = suspect
            self._alone = True
            return self._begin(self._single(part, of_key, alone=True))
        if (of_key := self._key_queues.next()) is not None:
            return self._begin(self._single(of_key.part, of_key))
        piece = self._next_single() if self._batch is None else self._next_batch(now)
        return None if piece is None else self._begin(piece)

    def wake_at(self) -> float:
        """The next instant at which time alone lets something begin."""
        return self._key_queues.wake_at()

    @property
    def waiting_keys(self) -> int:
        """How many keys, or partitions, wait for their time."""
        return self._key_queues.waiting

    def _due_suspect(self) -> tuple[Delivered, KeyQueue | None] | None:
        """A record that has to be in hand alone and may begin now: the first of its key, or of the queue."""
        for of_key in self._key_queues.ready:
            if (
                of_key.part in self._suspected
                and of_key.records
                and of_key.records[0].offset < of_key.part.suspect_until
            ):
                self._key_queues.first(of_key)
                return of_key.part, of_key
        for part in list(self._suspected):
            if part.next_is_free() and part.queue[0].offset < part.suspect_until:
                return part, None
            if part.place() >= part.suspect_until:
                self._suspected.discard(part)
        return None

    def _begin(self, piece: Piece) -> Piece:
        begin = 0
        for part, size in piece.parts:
            part.in_hand[piece] = piece.records[begin].offset
            begin += size
            part.begun = max(part.begun, piece.records[begin - 1].offset + 1)
        self.in_hand.add(piece)
        return piece

    def _single(self, part: Delivered, of_key: KeyQueue | None, *, alone: bool = False) -> Piece:
        """A piece of one record: of the next ready key, or the first of the queue, whose key waits from then on."""
        if of_key is None:
            record = part.queue.popleft()
            key = part.order_key(record)
            of_key = part.key_queues[key] = KeyQueue(part, key)
        else:
            self._key_queues.ready.popleft()
            record = of_key.records.popleft()
        of_key.in_hand = True
        return Piece((record,), ((part, 1),), of_key, alone)

    def _next_single(self) -> Piece | None:
        for _ in range(len(self._turns)):
            part = self._turns[0]
            self._turns.rotate(-1)
            if part.queue and part.next_is_free():
                return self._single(part, None)
        return None

    def _next_batch(self, now: float) -> Piece | None:
        assert self._batch is not None
        records: list[Record] = []
        parts: list[tuple[Delivered, int]] = []
        for _ in range(len(self._turns)):
            part = self._turns[0]
            self._turns.rotate(-1)
            if part.busy or part.until > now or not part.queue:
                continue
            if part.most_at_once is not None and part.queue[0].offset >= part.narrow_until:
                part.most_at_once = None
            narrow = part.most_at_once
            if narrow is not None and records:
                # What failed is tried by itself.
                continue
            room = self._batch - len(records)
            taken = part.take(room if narrow is None else min(room, narrow))
            if taken:
                part.busy = True
                parts.append((part, len(taken)))
                records += taken
            if records and (narrow is not None or len(records) >= self._batch):
                break
        return Piece(records, parts) if records else None

    # Ending.

    def ended(self, piece: Piece, outcome: Outcome) -> int:
        """What came of it. Returns how many records were done too late: their partition was dropped meanwhile."""
        self.in_hand.discard(piece)
        if piece.alone:
            self._alone = False
        late = 0
        for (part, size), (_, records) in zip(piece.parts, piece.shares(), strict=True):
            left: Sequence[Record] = () if isinstance(outcome, Handled) else records
            if part.dropped:
                late += size - len(left)
                continue
            self._done(piece, part, size - len(left))
            if left and part.leaving and isinstance(outcome, PutBack):
                part.give_up(left)
                self.left -= len(left)
            elif piece.of_key is not None:
                self._key_queues.back_to_key(piece.of_key, left, outcome)
            elif left:
                self._key_queues.back_to_queue(part, left, outcome, among_others=len(piece.parts) > 1)
            if part.leaving:
                self.left -= part.hand_back()
            if part.full:
                count, size_ahead = part.extent()
                part.full = count > self._ahead // 2 or size_ahead > self._ahead_bytes // 2
        return late

    def _done(self, piece: Piece, part: Delivered, size: int) -> None:
        part.in_hand.pop(piece, None)
        part.left -= size
        self.left -= size
        part.handled += size
        if piece.of_key is None:
            part.busy = False
            if part.most_at_once is not None:
                part.most_at_once *= 2

    # Committing, and how much more is wanted.

    def to_commit(self) -> list[Offsets]:
        """The offsets to commit now. They stay until `confirmed`, so a commit that failed is made again."""
        return to_commit(self.parts.values())

    def confirmed(self, offsets: Offsets) -> int:
        """The broker has them. Returns how many records that was, those in hand behind an unfinished one included."""
        return sum(part.confirmed(place) for part, place in offsets.places.items())

    def full(self) -> frozenset[TopicPartition]:
        """Partitions of which no more is wanted for now."""
        return frozenset(source for source, part in self.parts.items() if part.full)

    @property
    def unconfirmed(self) -> int:
        """How many handled records wait for the answer to a commit."""
        return sum(part.handled for part in self.parts.values())

    def ahead(self) -> int:
        """How many records may come again after a crash, at most."""
        return sum(part.ahead() for part in self.parts.values())
