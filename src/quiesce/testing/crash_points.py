"""Arms the named crash points of a process from its environment.

`QUIESCE_CRASH="relay.published:3:SIGKILL"` sends SIGKILL to the process itself when it reaches the point
`relay.published` for the third time: between the broker's acks and the marks in the database. Several are
separated by commas. A service's test module calls `arm_from_environment()` before it defines its service.
"""

import os
import signal
import sys
from collections.abc import Mapping

from quiesce.errors import SettingsError
from quiesce.lifecycle import crash_points

VARIABLE = "QUIESCE_CRASH"


def arm_from_environment(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Arms what the variable names and returns the points.

    Raises:
        SettingsError: an entry is not POINT:COUNT:SIGNAL.
    """
    armed = []
    for entry in filter(None, environ.get(VARIABLE, "").split(",")):
        try:
            point, count, name = entry.strip().split(":")
            number = signal.Signals[name]
            crash_points.arm(point, _Crash(int(count), number))
        except (ValueError, KeyError):
            raise SettingsError(
                f"{VARIABLE}: got {entry!r}, takes POINT:COUNT:SIGNAL, such as relay.published:1:SIGKILL"
            ) from None
        armed.append(point)
    return armed


class _Crash:
    """Counts how often its point is reached, and sends the signal once."""

    def __init__(self, count: int, number: signal.Signals) -> None:
        self._left = count
        self._number = number

    def __call__(self, point: str) -> None:
        self._left -= 1
        if self._left == 0:
            # Written before the signal: after SIGKILL there is no other moment.
            sys.stderr.write(f"crash point {point} reached, sending {self._number.name}\n")
            sys.stderr.flush()
            os.kill(os.getpid(), self._number)
