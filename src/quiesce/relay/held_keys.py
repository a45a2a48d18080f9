"""Keys that must not overtake a refused event of theirs. Pure."""

from collections import Counter
from collections.abc import Collection


class HeldKeys:
    """Keys of events that were refused and wait for their retry.

    Once the refusal is settled the store holds the key. But a claim that was made at the same time has
    not seen it yet, and may carry later events of the key: they are left out of what is published, and
    hold the key in turn until they are given back.
    """

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()
        self._recorded: set[str] = set()

    def claiming(self) -> None:
        """A claim begins: it sees every refusal that has been recorded by now."""
        self._recorded.clear()

    def refused(self, keys: Collection[str]) -> None:
        """Events of these keys were refused or left out; the store has yet to be told."""
        self._open.update(keys)

    def recorded(self, keys: Collection[str]) -> None:
        """The store has been told, for better or worse."""
        self._open.subtract(keys)
        self._open += Counter()
        self._recorded.update(keys)

    def holds(self, key: str) -> bool:
        return key in self._open or key in self._recorded
