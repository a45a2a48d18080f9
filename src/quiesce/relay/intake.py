"""How much to claim, and when to look again. Pure."""

from quiesce.relay.settings import IDLE_CEILING, RelaySettings


def room(settings: RelaySettings, open_claims: int, in_flight: int, allowed: int) -> int:
    """How many events the next claim may take; 0 while there is no room. `allowed` may be in flight.

    What is in flight is what a crash may double, so it bounds the claims and not only the messages. Open
    claims hold a connection each.
    """
    if open_claims >= settings.max_claims:
        return 0
    return max(0, min(settings.batch, min(allowed, settings.max_in_flight) - in_flight))


QUICK_LOOKS = 50
"""Empty looks in a row after which the outbox counts as idle."""


class Pace:
    """How long to wait after a claim.

    A full claim has more behind it: look again at once. One that came back short has seen everything
    there was: the poll interval gathers the next few events into one claim. While events keep coming, that
    interval is kept for some empty looks as well, since it is the latency of the next event; then each one
    doubles the wait, up to the ceiling.
    """

    def __init__(self, poll_interval: float, ceiling: float = IDLE_CEILING) -> None:
        self._poll_interval = poll_interval
        self._ceiling = ceiling
        self._wait = poll_interval
        self._quick = QUICK_LOOKS

    def after(self, found: int, asked: int) -> float:
        """Seconds until the next look."""
        if found:
            self.hurry()
            return 0.0 if found >= asked else self._poll_interval
        if self._quick:
            self._quick -= 1
            return self._poll_interval
        wait, self._wait = self._wait, min(self._wait * 2, self._ceiling)
        return wait

    def hurry(self) -> None:
        """There is, or will soon be, something to do."""
        self._wait = self._poll_interval
        self._quick = QUICK_LOOKS
