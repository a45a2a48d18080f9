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
        self._was_of_key = False
        """The last piece was the next one of its key."""
        self._turns: deque[Delivered] = deque()

    def came(self, part: Delivered) -> None:
        self._turns.append(part)

    def went(self, part: Delivered) -> None:
        self.suspected.discard(part)
        self._turns.remove(part)

    def next(self, now: float, *, nothing_in_hand: bool) -> Piece | None:
        """The next piece that may begin now; whoever takes it has it in hand."""
        if self.alone:
            return None
        self.key_queues.look(now)
        if self.suspected and (suspect := self._due_suspect()) is not None:
            if not nothing_in_hand:
                # It begins once they are over. Until then nothing else does, or it never would.
                return None
            part, of_key = suspect
            self.alone = True
            return self._single(part, of_key, alone=True)
        # In turn: keys whose wait is over, again and again, must not keep the others from beginning.
        of_key = self.key_queues.next()
        if of_key is None or self._was_of_key:
            fresh = self._next_single() if self._batch is None else self._next_batch(now)
            self._was_of_key = False
            if fresh is not None or of_key is None:
                return fresh
        self._was_of_key = True
        return self._single(of_key.part, of_key)

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
