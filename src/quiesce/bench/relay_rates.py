"""The peers of the relay's bench: who they are, and what they moved, as arithmetic, line and JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Curve = Sequence[tuple[float, int]]
"""Seconds since the peer was started, and how many messages the topic had then."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Messages a second: from the first to the last, in the second half of them, and from the start of the process."""

    average: float
    warm_half: float
    from_start: float


def rates(curve: Curve, events: int) -> Rates:
    """The rates of a curve that ends with at least `events` messages, more than none.

    Whatever had arrived at the first look that saw any is left out of the average: nobody knows when that began. If
    everything came between two looks, the one before is where it began.
    """
    begin = next(number for number, (_, count) in enumerate(curve) if count)
    end = next(number for number, (_, count) in enumerate(curve) if count >= events)
    half = next(number for number, (_, count) in enumerate(curve) if count >= events / 2)
    return Rates(_between(curve, begin, end), _between(curve, half, end), events / curve[end][0])


def _between(curve: Curve, begin: int, end: int) -> float:
    began, had = curve[begin] if begin < end else curve[max(end - 1, 0)]
    ended, has = curve[end]
    return (has - had) / (ended - began) if ended > began else has / ended


@dataclass(frozen=True, slots=True)
class Peer:
    """One peer, and what we promise beside it.

    Args:
        name: as it is asked for.
        program: its file in `benchmarks/relay_peers`.
        events: its backlog, chosen so that it takes about a minute at most.
        quick_events: its backlog when only showing that it works.
        least: how many times its average our log store moves, at least. None: nothing is promised.
        least_warm: the same beside the second half of its events.
    """

    name: str
    program: str
    events: int
    quick_events: int
    least: float | None = None
    least_warm: float | None = None


PEERS: Mapping[str, Peer] = {
    peer.name: peer
    for peer in (
        Peer("faststream-outbox", "with_faststream_outbox.py", 60_000, 1_000, least=10.0),
        Peer("txoutbox", "with_txoutbox.py", 200_000, 1_000, least=10.0),
        Peer("debezium", "with_debezium.py", 900_000, 5_000, least=3.0, least_warm=2.0),
        Peer("seed", "with_seed.py", 50, 3),
    )
}
SERVER = {"debezium": {"wal_level": "logical"}}
"""Settings that PostgreSQL needs for a peer."""


def chosen(text: str) -> tuple[str, ...]:
    """The names in `all`, `none` or a list with commas, in the order they are measured in.

    Raises:
        ValueError: there is no such peer.
    """
    if text in ("all", "none"):
        return tuple(PEERS) if text == "all" else ()
    names = {name.strip() for name in text.split(",")}
    if unknown := sorted(names - PEERS.keys()):
        raise ValueError(f"got {unknown[0]!r}, takes all, none or names of {', '.join(PEERS)}")
    return tuple(name for name in PEERS if name in names)


@dataclass(frozen=True, slots=True)
class PeerFigure:
    """What one peer moved, beside what our relay moved in the same run.

    Args:
        ours: our events a second.
        store: the store that they are of. Promises are about `log`; beside `row` the ratio is only told.
        backlog: how many events there were. Fewer were moved if its time was over.
    """

    peer: Peer
    version: str
    events: int
    rates: Rates
    ours: float
    store: str
    backlog: int
    duplicates: int = 0
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        """How many times its events a second ours are."""
        return self.ours / self.rates.average

    @property
    def warm_ratio(self) -> float:
        return self.ours / self.rates.warm_half

    @property
    def passed(self) -> bool | None:
        """Whether the promise is kept; None where there is none."""
        if self.peer.least is None or self.store != "log":
            return None
        return self.ratio >= self.peer.least and self.warm_ratio >= (self.peer.least_warm or 0.0)

    def line(self) -> str:
        promised = "" if self.passed is None else f" of at least {self.peer.least:g}"
        promised_warm = "" if self.passed is None or self.peer.least_warm is None else f" of {self.peer.least_warm:g}"
        verdict = {True: "  pass", False: "  MISSED", None: ""}[self.passed]
        twice = f"  {self.duplicates:,} twice" if self.duplicates else ""
        only = f" of {self.backlog:,}" if self.events < self.backlog else ""
        return (
            f"{self.peer.name} {self.version}  {self.events:,}{only} events  {_short(self.rates.average):>7} events/s  "
            f"second half {_short(self.rates.warm_half):>7}  our {self.store} store moves "
            f"{self.ratio:,.1f} times as many{promised}, {self.warm_ratio:,.1f}{promised_warm}{twice}{verdict}"
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "events_per_second": round(self.rates.average, 2),
            "events": self.events,
            "settings": self.settings,
            "version": self.version,
            "ratio_of_ours": round(self.ratio, 2),
            "warm_half_per_second": round(self.rates.warm_half, 2),
            "from_start_per_second": round(self.rates.from_start, 2),
            "warm_ratio_of_ours": round(self.warm_ratio, 2),
            "backlog": self.backlog,
            "duplicates": self.duplicates,
            "store_of_ours": self.store,
            "target": self.peer.least,
            "warm_target": self.peer.least_warm,
            "passed": self.passed,
        }


def _short(rate: float) -> str:
    """The seeds' relay moves one event a second, others tens of thousands."""
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.2f}"


@dataclass(frozen=True, slots=True)
class NotMeasured:
    """A peer that could not be measured, and the one line that says why. It fails nothing."""

    peer: Peer
    why: str

    @property
    def passed(self) -> bool | None:
        return None

    def line(self) -> str:
        return f"{self.peer.name}  not measured: {self.why}"

    def as_json(self) -> dict[str, Any]:
        return {"missing": self.why}
