"""What the families of metrics have in common: who handles which event, and children that are found fast."""

from collections.abc import Callable, Mapping
from typing import Any

from quiesce.lifecycle.events import Event

Handlers = Mapping[type[Event], Callable[[Any], None]]
"""By the exact type of the event. A relay tells thousands a second, so nobody tries one case after the other."""


class Children:
    """The child of a metric with these labels, found faster than the metric would."""

    def __init__(self) -> None:
        self._found: dict[tuple[Any, tuple[str, ...]], Any] = {}

    def __call__(self, metric: Any, *labels: str) -> Any:
        child = self._found.get((metric, labels))
        if child is None:
            child = self._found[metric, labels] = metric.labels(*labels)
        return child
