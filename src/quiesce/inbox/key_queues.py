"""Keys that wait: behind one of theirs, or for their time; and how records that began come back to them."""

from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import count
from math import inf

from quiesce.inbox.delivered import Delivered, KeyQueue
from quiesce.inbox.piece import Held, Outage, Outcome, Split, place_of
from quiesce.inbox.record import Record


class KeyQueues:
    """Which keys are ready, and which, with whole partitions, wait until when."""

    def __init__(self) -> None:
        self.ready: deque[KeyQueue] = deque()
        self._timed: list[tuple[float, int, KeyQueue | Delivered]] = []
        self._ticket = count()

    @property
    def waiting(self) -> int:
        """How many keys and partitions wait for their time."""
        return len(self._timed)

    def look(self, now: float) -> None:
        """Those whose time has come are ready."""
        while self._timed and self._timed[0][0] <= now:
            at, ticket, what = heappop(self._timed)
            if not _means_nothing(at, ticket, what):
                what.until = -inf
                if isinstance(what, KeyQueue):
                    what.retried = True
                    self.ready.append(what)

    def wake_at(self) -> float:
        """When the next of them is due; infinity if none waits."""
        while self._timed and _means_nothing(*self._timed[0]):
            heappop(self._timed)
        return self._timed[0][0] if self._timed else inf

    def next(self) -> KeyQueue | None:
        """A key whose first record may begin now. It stays where it is until that is taken."""
        while self.ready:
            of_key = self.ready[0]
            if of_key.records and not of_key.part.dropped:
                return of_key
            self.ready.popleft()
        return None

    def first(self, of_key: KeyQueue) -> None:
        """This ready one is the next."""
        self.ready.remove(of_key)
        self.ready.appendleft(of_key)

    def back_to_key(self, of_key: KeyQueue, left: Sequence[Record], outcome: Outcome) -> None:
        """The record in hand of this key is over. `left` has it if it is not done."""
        of_key.in_hand = of_key.retried = False
        of_key.records.extendleft(left)
        if not left:
            self._free(of_key)
        elif isinstance(outcome, Held):
            self._wait(of_key, outcome.until.get(place_of(left[0]), -inf))
        else:
            self._wait(of_key, outcome.until if isinstance(outcome, Outage) else -inf)

    def back_to_queue(self, part: Delivered, left: Sequence[Record], outcome: Outcome, *, among_others: bool) -> None:
        """These of a batch that is over are not done. They go in front of what has not begun, or wait by key."""
        match outcome:
            case Held(until=until):
                keys = {part.order_key(record) for record in left if place_of(record) in until}
                key_queues = {key: part.key_queues.setdefault(key, KeyQueue(part, key)) for key in keys}
                rest: list[Record] = []
                for record in left:
                    of_key = key_queues.get(part.order_key(record))
                    (rest if of_key is None else of_key.records).append(record)
                for of_key in key_queues.values():
                    self._wait(of_key, until.get(place_of(of_key.records[0]), -inf))
                left = rest
            case Split():
                # Several partitions are told apart first, then one is halved until the record is found.
                part.most_at_once = len(left) if among_others else max(1, len(left) // 2)
                part.narrow_until = max(part.narrow_until, left[-1].offset + 1)
            case Outage(until=until):
                part.until = until
                heappush(self._timed, (until, next(self._ticket), part))
        part.queue.extendleft(reversed(left))

    def _wait(self, of_key: KeyQueue, until: float) -> None:
        of_key.until = until
        if until > -inf:
            heappush(self._timed, (until, next(self._ticket), of_key))
        else:
            self.ready.append(of_key)

    def _free(self, of_key: KeyQueue) -> None:
        if of_key.records:
            self.ready.append(of_key)
        elif of_key.part.key_queues.get(of_key.key) is of_key:
            del of_key.part.key_queues[of_key.key]


def _means_nothing(at: float, ticket: int, what: KeyQueue | Delivered) -> bool:
    """Whether an entry of the clock is no longer about anything."""
    part = what.part if isinstance(what, KeyQueue) else what
    return part.dropped or part.leaving or what.until != at
