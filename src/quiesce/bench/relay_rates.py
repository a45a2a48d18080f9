"""The peers of the relay's bench: who they are, and what they moved, as arithmetic and figures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from quiesce.bench.cores import Shares
from quiesce.bench.figures import Figure
from quiesce.bench.results import Result

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
    cores: Shares | None = None

    @property
    def ratio(self) -> float:
        """How many times its events a second ours are."""
        return self.ours / self.rates.average

    @property
    def warm_ratio(self) -> float:
        return self.ours / self.rates.warm_half

    @property
    def figures(self) -> tuple[Figure, ...]:
        """Beside what is promised of our log store; beside the row store nothing is."""
        promised = self.store == "log"
        least, warm = (self.peer.least, self.peer.least_warm) if promised else (None, None)
        says = f"our {self.store} store moves so many times as many"
        return (
            Figure("ratio", says, self.ratio, "", least, at_least=True),
            Figure("warm_ratio", "the same beside its second half", self.warm_ratio, "", warm, at_least=True),
        )

    @property
    def passed(self) -> bool | None:
        """Whether the promise is kept; None where there is none."""
        verdicts = [figure.passed for figure in self.figures if figure.passed is not None]
        return all(verdicts) if verdicts else None

    @property
    def says(self) -> str:
        twice = f"; {self.duplicates:,} came twice" if self.duplicates else ""
        only = f" of {self.backlog:,}" if self.events < self.backlog else ""
        return (
            f"{self.peer.name} {self.version}: {self.events:,}{only} events, {_short(self.rates.average)} events/s, "
            f"second half {_short(self.rates.warm_half)}{twice}"
        )

    def result(self) -> Result:
        return Result(("peers", self.peer.name), self.says, self.figures, self.as_json(), self.cores)

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
        }


def _short(rate: float) -> str:
    """The seeds' relay moves one event a second, others tens of thousands."""
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.2f}"


@dataclass(frozen=True, slots=True)
class NotMeasured:
    """A peer that could not be measured, and the one line that says why. It fails nothing."""

    peer: Peer
    why: str

    def result(self) -> Result:
        return Result(("peers", self.peer.name), self.peer.name, missing=self.why)
