"""What a consumer has, what of it may begin now, and which offsets may be committed. It decides; others wait.

Records come in by `deliver`, begin by `next`, and end by `ended`. Records of one key are begun one after the
other, in their order; so are those without a key, per partition, unless they are said to be free of order. A record
that has to wait holds up its key and nothing else.
"""

from collections.abc import Callable, Sequence
from itertools import groupby
from math import inf
from operator import attrgetter

from quiesce.inbox.choice import Choice
from quiesce.inbox.delivered import Delivered
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
        self._ahead = ahead
        self._ahead_bytes = ahead_bytes
        self._free_nulls = free_nulls
        self._choice = Choice(batch)

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
                self._choice.came(part)
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
                        self._choice.suspected.add(part)

    def leave(self, part: Delivered) -> None:
        """It is being taken away: nothing of it begins any more, what is in hand may end."""
        part.leaving = True
        self._choice.suspected.discard(part)
        self.left -= part.hand_back()

    def drop(self, part: Delivered) -> None:
        """It is not ours any more, or was put away: what still ends of it changes nothing."""
        if part.dropped:
            return
        part.dropped = True
        self.left -= part.left
        self._choice.went(part)
        del self.parts[part.source]

    # Beginning.

    def next(self, now: float) -> Piece | None:
        """The next piece that may begin now. It is in hand from then on."""
        piece = self._choice.next(now, in_hand=len(self.in_hand))
        if piece is not None:
            begin = 0
            for part, size in piece.parts:
                part.in_hand[piece] = piece.records[begin : begin + size]
                begin += size
                part.begun = max(part.begun, piece.records[begin - 1].offset + 1)
            self.in_hand.add(piece)
        return piece

    def wake_at(self) -> float:
        """The next instant at which time alone lets something begin."""
        return self._choice.key_queues.wake_at()

    @property
    def waiting_keys(self) -> int:
        """How many keys, or partitions, wait for their time."""
        return self._choice.key_queues.waiting

    # Ending.

    def ended(self, piece: Piece, outcome: Outcome) -> int:
        """What came of it. Returns how many records were done too late: their partition was dropped meanwhile."""
        self.in_hand.discard(piece)
        self._choice.ended(piece)
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
                self._choice.key_queues.back_to_key(piece.of_key, left, outcome)
            elif left:
                self._choice.key_queues.back_to_queue(part, left, outcome, among_others=len(piece.parts) > 1)
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
        for part, place in offsets.places.items():
            part.confirmed(place.offset, place.handled)
        return sum(place.handled for place in offsets.places.values())

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
