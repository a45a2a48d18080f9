"""librdkafka's own log, tamed: what it says again and again is written once in a while."""

import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass

AGAIN_AFTER = 30.0
"""Seconds in which a line that differs in numbers only is written once."""

_MOST = 200
"""Different lines that are remembered. There are some dozens; an endless supply must not fill the memory."""

_NUMBERS = re.compile(r"\d+")
_PREFIX = re.compile(r"^\w+ \[rdkafka#[^\]]*\] (?:\[thrd:[^\]]*\]: )?")
_TIMING = re.compile(r" \(after \d+ms in state .*$", re.DOTALL)

_KNOWN = ("enable.gapless.guarantee is experimental", "Fatal error: Local: Gap-less ordering")
"""Nothing new: a setting of ours, and what it does when a broker refuses an event, which the publisher tells."""


@dataclass(slots=True)
class _Line:
    written_at: float
    kept_back: int = 0


class Tamed(logging.Filter):
    """Lets the first of many equal lines through, and then one every `again_after` seconds, with their number.

    While no broker answers, librdkafka writes an ERROR for each connection that it tries, several a second and
    for each of its clients. The service says itself what it cannot reach, so these lines are no more than a
    hint: an ERROR among them becomes a WARNING.
    """

    def __init__(self, again_after: float = AGAIN_AFTER, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._again_after = again_after
        self._clock = clock
        self._lines: dict[str, _Line] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        text = _TIMING.sub("", record.getMessage())
        if any(known in text for known in _KNOWN):
            return False
        line = _NUMBERS.sub("#", _PREFIX.sub("", text))
        now = self._clock()
        seen = self._lines.get(line)
        if seen is not None and now - seen.written_at < self._again_after:
            seen.kept_back += 1
            return False
        if seen is None and len(self._lines) >= _MOST:
            # The one that was written longest ago.
            del self._lines[next(iter(self._lines))]
        self._lines.pop(line, None)
        self._lines[line] = _Line(now)
        more = f" ({seen.kept_back} more like this since it was last written)" if seen and seen.kept_back else ""
        record.msg, record.args = text + more, ()
        if record.levelno == logging.ERROR:
            record.levelno, record.levelname = logging.WARNING, logging.getLevelName(logging.WARNING)
        return True
