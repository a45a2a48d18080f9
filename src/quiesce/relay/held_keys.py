"""Keys that must not overtake a refused event of theirs. Pure."""

from collections.abc import Iterable, Mapping

from quiesce.outbox.event import ClaimedEvent

Places = Mapping[str, int]
"""For each key, the first position that holds it."""


class HeldKeys:
    """Keys of events that were refused and wait for their retry.

    Once the refusal is settled the store holds the key. But a claim that was made at the same time has
    not seen it yet, and may carry later events of the key: they are left out of what is published, and
    hold the key in turn until they are given back.

    A key is held behind a position and not as a whole: otherwise an event that was left out could keep
    back the very event it waits for, and each the other, for ever.
    """

    def __init__(self) -> None:
        self._open: list[Places] = []
        self._recorded: list[Places] = []

    def claiming(self) -> None:
        """A claim begins: it sees every refusal that has been recorded by now."""
        self._recorded.clear()

    def refused(self, places: Places) -> None:
        """Events were refused or left out; the store has yet to be told."""
        if places:
            self._open.append(places)

    def recorded(self, places: Places) -> None:
        """The store has been told, for better or worse."""
        if places:
            self._open.remove(places)
            self._recorded.append(places)

    @property
    def any(self) -> bool:
        """Whether any key is held. Mostly none is, and then no event need be looked at."""
        return bool(self._open or self._recorded)

    def holds(self, event: ClaimedEvent) -> bool:
        """Whether an earlier event of its key waits."""
        if not self._open and not self._recorded:
            # Asked for every event, and nearly always so.
            return False
        return any(
            places.get(event.aggregate_id, event.position) < event.position
            for held in (self._open, self._recorded)
            for places in held
        )


def first_places(events: Iterable[ClaimedEvent]) -> dict[str, int]:
    """For each key, the position of its first event."""
    places: dict[str, int] = {}
    for event in events:
        places[event.aggregate_id] = min(event.position, places.get(event.aggregate_id, event.position))
    return places
