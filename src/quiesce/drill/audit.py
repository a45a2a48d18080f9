"""The audit: compares what clients were promised with the tables and with the topic. Values in, findings out."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """A row of `outbox_event`. `key` is its aggregate id."""

    event_id: str
    position: int
    key: str
    type: str
    dispatched: bool = True


@dataclass(frozen=True, slots=True)
class Arrival:
    """One message on the topic. `event_id` is its header `id`, empty if it has none."""

    event_id: str
    key: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Findings:
    """What the audit found. The tuples name the culprits, so that somebody can look them up."""

    accepted: int
    delivered: int
    """Distinct events of the table that are on the topic."""
    lost_orders: tuple[str, ...]
    """Accepted orders without their row, orders without their first event, ids that were given out twice."""
    lost_events: tuple[str, ...]
    """Events of the table that are not on the topic."""
    undispatched: int
    """How many of `lost_events` nobody claims to have published: they still wait in the outbox."""
    duplicates: int
    """Messages beyond the first of each event."""
    out_of_order: tuple[str, ...]
    """Events whose first occurrence comes before that of an earlier event of their key, or whose key lies in
    more than one partition, where it has no order."""
    foreign: tuple[str, ...]
    """Messages that no row accounts for: an unknown id, or another key than the row has."""
    doubled_orders: tuple[str, ...] = ()
    """Orders that nobody placed: a request that was sent again was carried out again."""

    @property
    def lost(self) -> int:
        return len(self.lost_orders) + len(self.lost_events)

    @property
    def clean(self) -> bool:
        """Duplicates are allowed: the promise is at least once."""
        return not (self.lost or self.out_of_order or self.foreign or self.doubled_orders)


def audit(
    accepted: Sequence[str],
    orders: Collection[str],
    rows: Sequence[OutboxRow],
    arrivals: Iterable[Arrival],
    *,
    first_type: str = "OrderPlaced",
    unanswered: int | None = None,
) -> Findings:
    """Compares the ledger, the tables and the topic.

    Args:
        accepted: ids of the orders that a client was told are placed.
        orders: ids of the rows in the table of orders.
        rows: the outbox's events of the topic.
        arrivals: everything on the topic, in any order.
        first_type: the type of the event that every order begins with.
        unanswered: how many requests have no answer, so that nobody knows whether they made an order. None where
            clients do not send again what was cut: then any order without an answer may be one of theirs.
    """
    by_id = {row.event_id: row for row in rows}
    known: list[Arrival] = []
    foreign: list[str] = []
    for arrival in sorted(arrivals, key=lambda a: (a.partition, a.offset)):
        row = by_id.get(arrival.event_id)
        if row is None or row.key != arrival.key:
            foreign.append(arrival.event_id or f"message {arrival.offset} of partition {arrival.partition}")
        else:
            known.append(arrival)
    delivered = {arrival.event_id for arrival in known}
    missing = [row for row in rows if row.event_id not in delivered]
    unclaimed = sorted(set(orders) - set(accepted))
    return Findings(
        accepted=len(accepted),
        delivered=len(delivered),
        lost_orders=tuple(_lost_orders(accepted, orders, rows, first_type)),
        lost_events=tuple(row.event_id for row in missing),
        undispatched=sum(not row.dispatched for row in missing),
        duplicates=len(known) - len(delivered),
        out_of_order=tuple(_out_of_order(by_id, known)),
        foreign=tuple(foreign),
        doubled_orders=tuple(unclaimed) if unanswered is not None and len(unclaimed) > unanswered else (),
    )


def _lost_orders(
    accepted: Sequence[str], orders: Collection[str], rows: Sequence[OutboxRow], first_type: str
) -> list[str]:
    stored = set(orders)
    begun = {row.key for row in rows if row.type == first_type}
    # A row without its event was torn from it, whether or not a client had its answer.
    lost = sorted((set(accepted) | stored) - (stored & begun))
    # An id that two clients were given stands for one order: the other one is nowhere.
    given_twice = [order for order, times in Counter(accepted).items() for _ in range(times - 1)]
    return lost + given_twice


def _out_of_order(by_id: dict[str, OutboxRow], known: Sequence[Arrival]) -> list[str]:
    """`known` is sorted by partition and offset, so an event's first occurrence in each partition comes first."""
    places: dict[str, dict[str, Arrival]] = defaultdict(dict)
    strays: set[str] = set()
    homes: dict[str, int] = {}
    for arrival in known:
        home = homes.setdefault(arrival.key, arrival.partition)
        if arrival.partition != home:
            strays.add(arrival.event_id)
        places[arrival.key].setdefault(arrival.event_id, arrival)
    found: list[str] = []
    for events in places.values():
        furthest = -1
        for event_id in sorted(events, key=lambda event: by_id[event].position):
            arrival = events[event_id]
            if event_id in strays or arrival.offset < furthest:
                found.append(event_id)
            else:
                furthest = arrival.offset
    return found
