"""Named points at which a test may crash, freeze or fail the process.

The code calls `reach(name)` where a kill would hurt most: between an ack and its mark, between a claim
and its release. Nothing happens there until `quiesce.testing` arms the point, so that the tests name the
exact instant instead of guessing it with a sleep.
"""

from collections.abc import Callable

_armed: dict[str, Callable[[str], None]] = {}


def reach(name: str) -> None:
    """Runs what was armed at this point, if anything was."""
    if _armed:
        action = _armed.get(name)
        if action is not None:
            action(name)


def arm(name: str, action: Callable[[str], None]) -> None:
    """Runs `action(name)` each time the point is reached, until it is disarmed. For tests."""
    _armed[name] = action


def disarm(name: str | None = None) -> None:
    """Disarms one point, or all of them."""
    if name is None:
        _armed.clear()
    else:
        _armed.pop(name, None)
