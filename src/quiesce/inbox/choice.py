"""Which piece begins next: of keys that are ready, of suspects that have to be alone, of partitions in turn.

Nothing here waits."""

from collections import deque

from quiesce.inbox.delivered import Delivered, KeyQueue
from quiesce.inbox.key_queues import KeyQueues
from quiesce.inbox.piece import Piece
from quiesce.inbox.record import Record


class Choice:
    """Of what a window has. `batch`: most records of a piece, or None: one record a piece."""

    def __init__(self, batch: int | None) -> None:
        self.key_queues = KeyQueues()
        self.suspected: set[Delivered] = set()
        """Partitions with records that have to be in hand alone."""
        self.alone = False
        """Such a one is in hand."""
        self._batch = batch
        self._retrying = 0
        """Pieces in hand of keys that had to wait for their time."""
        self._retried_last = False
        self._turns: deque[Delivered] = deque()

    def came(self, part: Delivered) -> None:
        self._turns.append(part)

    def went(self, part: Delivered) -> None:
        self.suspected.discard(part)
        self._turns.remove(part)

    def ended(self, piece: Piece) -> None:
        """It is in hand no more."""
        if piece.alone:
            self.alone = False
        if piece.retried:
            self._retrying -= 1

    def next(self, now: float, *, in_hand: int) -> Piece | None:
        """The next piece that may begin now, with so many in hand; whoever takes it has it in hand."""
        if self.alone:
            return None
        self.key_queues.look(now)
        if self.suspected and (suspect := self._due_suspect()) is not None:
            if in_hand:
                # It begins once they are over. Until then nothing else does, or it never would.
                return None
            part, of_key = suspect
            self.alone = True
            return self._single(part, of_key, alone=True)
        of_key = self.key_queues.next()
        if of_key is None or (of_key.retried and self._others_first(in_hand)):
            fresh = self._next_single() if self._batch is None else self._next_batch(now)
            if fresh is not None or of_key is None:
                self._retried_last = False
                return fresh
        self._retried_last = of_key.retried
        return self._single(of_key.part, of_key)

    def _others_first(self, in_hand: int) -> bool:
        """Keys that fail again and again, and slowly, must not keep the others from beginning: half of what is in hand
        is theirs, or every second turn."""
        return self._retrying * 2 > in_hand or (self._retrying * 2 == in_hand and self._retried_last)

    def _due_suspect(self) -> tuple[Delivered, KeyQueue | None] | None:
        """A record that has to be in hand alone and may begin now: the first of its key, or of the queue."""
        for of_key in self.key_queues.ready:
            if (
                of_key.part in self.suspected
                and of_key.records
                and of_key.records[0].offset < of_key.part.suspect_until
            ):
                self.key_queues.first(of_key)
                return of_key.part, of_key
        for part in list(self.suspected):
            if part.next_is_free() and part.queue[0].offset < part.suspect_until:
                return part, None
            if part.place() >= part.suspect_until:
                self.suspected.discard(part)
        return None

    def _single(self, part: Delivered, of_key: KeyQueue | None, *, alone: bool = False) -> Piece:
        """A piece of one record: of the next ready key, or the first of the queue, whose key waits from then on."""
        if of_key is None:
            record = part.queue.popleft()
            key = part.order_key(record)
            of_key = part.key_queues[key] = KeyQueue(part, key)
        else:
            self.key_queues.ready.popleft()
            record = of_key.records.popleft()
        of_key.in_hand = True
        self._retrying += of_key.retried
        return Piece((record,), ((part, 1),), of_key, alone, of_key.retried)

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
