"""What one run of the relay's bench measures, and how much of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from quiesce.bench.relay_rates import SERVER

PARTS = {
    "throughput": "events a second of a backlog, beside a bare loop",
    "pair": "two relays beside one",
    "pages": "throughput against the size of a page",
    "latency": "from commit to consumer",
    "rates": "latency against the rate of events",
    "handover": "a relay goes, another takes over",
    "wakeup": "what waking the relay costs a writer",
    "horizon": "a forgotten transaction holds the horizon",
    "memory": "the relay's memory before a large backlog",
}
"""The parts, in the order in which they are measured; peers come last."""

ALWAYS = ("throughput", "pair", "latency", "handover")
LONG = ("wakeup", "horizon", "memory")
SWEEPS = ("pages", "rates")

LEAST_PAYLOAD = 16
"""Bytes in which the number of an event has room."""


def chosen_parts(text: str) -> tuple[str, ...]:
    """The parts in a list with commas, in the order they are measured in.

    Raises:
        ValueError: there is no such part.
    """
    names = {name.strip() for name in text.split(",")}
    if unknown := sorted(names - PARTS.keys()):
        raise ValueError(f"got {unknown[0]!r}, takes names of {', '.join(PARTS)}")
    return tuple(name for name in PARTS if name in names)


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured. Seconds and numbers.

    Args:
        by: seconds since the start of the run at which the rounds of a store, or the turns of a part, have to be over;
            one that would not fit is left out, the first never. Who is not named has no end.
        pair_events: what one or two relays move of the backlog, at most a third of it.
        latency_seconds: of load for our relay in all, and as many for the loop beside it, in `latency_turns` turns;
            behind `latency_warm_up` seconds of load that do not count, unless other parts have warmed the broker.
        handovers: how often a relay goes by each signal, and is started cold.
        warm_up: events that are moved before anything counts, so that no side pays for a cold broker; 0 for none.
        segments: of load with wake-ups, and as many without.
        horizon_rate, beside_rate: events a second with a held horizon, and at the same time on a database without.
        window: the load with a held horizon is looked at in windows of this length.
    """

    by: Mapping[str, float] = field(default_factory=dict)
    rounds: int = 3
    warm_up: int = 100_000
    row_events: int = 200_000
    pair_events: int = 200_000
    pair_turns: int = 2
    latency_seconds: float = 8.0
    latency_turns: int = 2
    latency_warm_up: float = 3.0
    idle_seconds: float = 4.0
    handovers: int = 1
    handover_seconds: float = 1.5
    segments: int = 6
    segment_seconds: float = 8.0
    segment_rate: float = 1_000.0
    horizon_seconds: float = 600.0
    horizon_rate: float = 2_000.0
    beside_rate: float = 200.0
    window: float = 30.0
    memory_events: int = 5_000_000
    pages: Sequence[int] = (50, 100, 200, 500, 1_000, 2_000, 5_000)
    page_rounds: int = 1
    page_events: int = 200_000
    rates: Sequence[float] = (20.0, 50.0, 100.0, 200.0, 500.0, 1_000.0, 2_000.0)
    rate_seconds: float = 8.0


SHORT = Effort(by={"log": 110.0, "row": 145.0, "pair": 178.0})
"""What fits into four minutes. The long parts take what they need."""

FULL = Effort(
    rounds=5,
    handovers=3,
    pair_turns=4,
    latency_seconds=40.0,
    latency_turns=4,
    latency_warm_up=15.0,
    idle_seconds=20.0,
    page_rounds=2,
    rate_seconds=15.0,
)

QUICK = Effort(
    rounds=1,
    warm_up=0,
    row_events=5_000,
    pair_events=5_000,
    pair_turns=1,
    latency_seconds=1.0,
    latency_turns=1,
    latency_warm_up=0.0,
    idle_seconds=0.5,
    handover_seconds=0.7,
    segments=2,
    segment_seconds=0.6,
    segment_rate=200.0,
    horizon_seconds=3.0,
    horizon_rate=400.0,
    beside_rate=200.0,
    window=1.0,
    memory_events=20_000,
    pages=(100, 1_000),
    page_events=4_000,
    rates=(50.0, 200.0),
    rate_seconds=0.8,
)
QUICK_EVENTS = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One run.

    Args:
        parts: names of `PARTS`.
        database: the DSN of a server that is there; empty to start one.
        events: of the backlog.
        page, pages: most events of one claim, and claims in flight.
        peers: names of other relays that are measured after ours. `quick`: on few events.
    """

    stores: Sequence[str] = ("log", "row")
    parts: Sequence[str] = ALWAYS
    broker: str = "kafka"
    database: str = ""
    events: int = 1_000_000
    keys: int = 1_000
    payload: int = 200
    page: int = 5_000
    pages: int = 4
    effort: Effort = SHORT
    peers: Sequence[str] = ()
    quick: bool = False

    @property
    def server(self) -> dict[str, str]:
        """PostgreSQL's settings: the ones that a peer needs hold for all that is measured."""
        wanted: dict[str, str] = {}
        for peer in self.peers:
            wanted |= SERVER.get(peer, {})
        return wanted

    @property
    def first_store(self) -> str:
        """The store of the parts that are measured on one only."""
        return self.stores[0]
