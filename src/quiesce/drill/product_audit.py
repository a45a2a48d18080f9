"""The audit of consumed events: compares what was published with what the tables say. Values in, findings out."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from quiesce.drill.product_load import ProductEvent


@dataclass(frozen=True, slots=True)
class ProductFindings:
    """`published`: events that the broker acknowledged."""

    published: int
    missed: tuple[str, ...]
    """Events without their mark in the inbox: nobody has handled them."""
    stale: tuple[str, ...]
    """Products whose row is older than the last event of them."""

    @property
    def clean(self) -> bool:
        return not (self.missed or self.stale)

    def faults(self) -> list[str]:
        """A line for each kind of thing that went wrong."""
        lines = [f"{len(self.missed)} product events not handled: {self.missed[0]}, ..."] if self.missed else []
        if self.stale:
            lines.append(f"{len(self.stale)} products older than their last event: {self.stale[0]}, ...")
        return lines

    def as_dict(self) -> dict[str, int]:
        return {"published": self.published, "missed": len(self.missed), "stale": len(self.stale)}


def audit_products(
    published: Sequence[ProductEvent], marked: Collection[str], versions: Mapping[str, int]
) -> ProductFindings:
    """Args:
    marked: ids of the events that have a mark in the inbox.
    versions: by product, as the table has it. It may be newer than what was acknowledged: a broker can keep an event
        and lose its answer.
    """
    return ProductFindings(
        published=len(published),
        missed=tuple(event.event_id for event in published if event.event_id not in marked),
        stale=tuple(
            product for product, version in sorted(_newest(published).items()) if versions.get(product, 0) < version
        ),
    )


def _newest(published: Iterable[ProductEvent]) -> dict[str, int]:
    newest: dict[str, int] = {}
    for event in published:
        newest[event.product] = max(event.version, newest.get(event.product, 0))
    return newest
