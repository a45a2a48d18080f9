"""Which worker waits for which: edges that no shutdown could keep are refused while the service starts."""

from collections.abc import Mapping

from quiesce.errors import SettingsError
from quiesce.lifecycle.budget import WorkerBound


def check_edges(asks: Mapping[str, WorkerBound]) -> None:
    """Refuses edges between workers that cannot be kept. `asks`: all of them, by name.

    Raises:
        SettingsError: a worker keeps one that is not there, or they keep each other in a circle.
    """
    for ask in asks.values():
        for name in ask.keeps if ask.keeps != "all" else ():
            if name not in asks:
                raise SettingsError(f"worker {ask.name!r} keeps {name!r}, and there is no such worker")
    keepers = any(ask.keeps for ask in asks.values())
    over: set[str] = set()
    while keepers and (left := [ask for ask in asks.values() if ask.name not in over]):
        # Those that wait for nobody who is left go next; if there is none, they wait for each other.
        free = {ask.name for ask in left if not any(ask.waits_for(other) for other in left)}
        if not free:
            raise SettingsError(f"workers keep each other in a circle: {', '.join(ask.name for ask in left)}")
        over |= free
