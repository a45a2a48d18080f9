"""Says which events were given up for good. Thousands may be at once, so of like ones one is named a minute."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from quiesce.outbox.event import ClaimedEvent
from quiesce.relay.verdicts import name_of

log = logging.getLogger("quiesce.relay")

Letter = tuple[ClaimedEvent, str]
"""An event that is given up for good, and why."""

AGAIN_AFTER = 60.0
"""Seconds until another one of the same topic and error is named."""

_MOST = 1000
"""Topics and errors that are remembered, at most."""
_LONGEST = 300
"""Characters of a reason."""


@dataclass(slots=True)
class _Told:
    at: float
    kept_back: int = 0


class LetterLog:
    """For the relay of that name. Neither keys nor payloads are shown."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._told: dict[tuple[str, str], _Told] = {}

    def tell(self, letters: Sequence[Letter], now: float) -> None:
        """These have just become dead letters. `now` is in seconds."""
        for event, reason in letters:
            like = (event.topic, name_of(reason))
            told = self._told.get(like)
            if told is not None and now < told.at + AGAIN_AFTER:
                told.kept_back += 1
                continue
            if told is None and len(self._told) >= _MOST:
                self._told.clear()
            self._told[like] = _Told(now)
            more = f" ({told.kept_back} more of these since the last one was told)" if told and told.kept_back else ""
            log.warning(
                "%s: event %s of type %r for topic %r is a dead letter: %s%s. See: quiesce outbox dead",
                self._name,
                event.id,
                event.type[:_LONGEST],
                event.topic[:_LONGEST],
                reason[:_LONGEST],
                more,
            )
