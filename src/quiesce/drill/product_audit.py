"""The audit of consumed events: what was published against the tables and the group's offsets. Values in, findings
out."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from quiesce.drill.product_load import ProductEvent


@dataclass(frozen=True, slots=True)
class ProductFindings:
    """`published`: events that the broker acknowledged."""

    published: int
    lost: tuple[str, ...]
    """Events without their mark in the inbox, although the group has committed past them: nobody will handle them."""
    waiting: int
    """Events that nobody has handled yet."""
    stale: tuple[str, ...]
    """Products whose row is older than their last event that was handled."""

    @property
    def clean(self) -> bool:
        return not (self.lost or self.waiting or self.stale)

    def faults(self, may_wait: bool) -> list[str]:
        """A line for each kind of thing that went wrong. `may_wait`: not everything need be handled, since it was
        interrupted, or the broker may leave a group without partitions."""
        lines = [f"{len(self.lost)} product events lost: {_some(self.lost)}"] if self.lost else []
        if self.stale:
            lines.append(f"{len(self.stale)} products older than their last event: {_some(self.stale)}")
        if self.waiting and not may_wait:
            lines.append(f"{self.waiting} product events still wait for the consumers")
        return lines

    def as_dict(self) -> dict[str, int]:
        return {
            "published": self.published,
            "lost": len(self.lost),
            "waiting": self.waiting,
            "stale": len(self.stale),
        }


def audit_products(
    published: Sequence[ProductEvent],
    marked: Collection[str],
    versions: Mapping[str, int],
    committed: Mapping[int, int],
) -> ProductFindings:
    """Args:
    marked: ids of the events that have a mark in the inbox.
    versions: by product, as the table has it. It may be newer than what was acknowledged: a broker can keep an event
        and lose its answer.
    committed: where the group goes on, by partition.
    """
    unmarked = [event for event in published if event.event_id not in marked]
    lost = [event.event_id for event in unmarked if event.offset < committed.get(event.partition, 0)]
    newest = _newest(event for event in published if event.event_id in marked)
    return ProductFindings(
        published=len(published),
        lost=tuple(lost),
        waiting=len(unmarked) - len(lost),
        stale=tuple(product for product, version in sorted(newest.items()) if versions.get(product, 0) < version),
    )


def _newest(events: Iterable[ProductEvent]) -> dict[str, int]:
    newest: dict[str, int] = {}
    for event in events:
        newest[event.product] = max(event.version, newest.get(event.product, 0))
    return newest


def _some(names: Sequence[str], most: int = 3) -> str:
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")
