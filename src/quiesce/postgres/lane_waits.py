"""How long lanes that were another's have waited until they were ours. Nothing is asked of the server for it."""

from collections.abc import Collection

from quiesce.outbox.ports import Takeover


class LaneWaits:
    """What a member has seen of the others' lanes. Times are monotonic seconds.

    A lane waits from when it was last seen with another owner, which is looked at ten times a second. Where that owner
    had given no sign of life for long, as when its node was lost or its process frozen, it waits since the last one.
    """

    def __init__(self) -> None:
        self._others_at: dict[int, float] = {}
        self.silent_since: float | None = None
        """The last sign of life of an owner that has given none for long; None: there is no such owner."""

    def others_have(self, lanes: Collection[int], at: float) -> None:
        """At `at` each of these lanes had another owner."""
        self._others_at.update(dict.fromkeys(lanes, at))

    def heard(self, silent_since: float | None) -> None:
        """There is, or is not, an owner without a sign of life since then, or longer."""
        if silent_since is None or self.silent_since is None:
            self.silent_since = silent_since
        else:
            self.silent_since = min(self.silent_since, silent_since)

    def owned(self, lanes: Collection[int], now: float, *, silent_one_ended: bool) -> Takeover | None:
        """These lanes are ours now. None where none of them was another's that we know of.

        `silent_one_ended`: whether the owner that was silent has lanes no more, so that these may have been its own.
        """
        since = [at for lane in lanes if (at := self._others_at.pop(lane, None)) is not None]
        if silent_one_ended:
            silent_since, self.silent_since = self.silent_since, None
            if silent_since is not None and since:
                since.append(silent_since)
                return Takeover(len(since) - 1, now - min(since))
        return Takeover(len(since), now - min(since)) if since else None
