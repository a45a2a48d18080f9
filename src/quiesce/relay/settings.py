"""What a relay is asked to do, validated once."""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import isfinite
from typing import Literal

from quiesce.errors import SettingsError
from quiesce.lifecycle.ports import OnDrain
from quiesce.outbox.retry import RetryPolicy

POLL_INTERVAL = 0.02
"""Seconds between two looks at a store that does not say how often it may be asked."""

IDLE_CEILING = 0.1
"""Seconds between two looks at an idle outbox, at most: it is the latency of an event without a nudge."""

STOPS_WITHIN = 10.0
"""Seconds that a stop is taken to leave a relay without a bound of its own."""


def dead_lets_key_go(topic: str) -> bool:
    """The policy of a store that has none."""
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class RelaySettings:
    """See `Relay` for what each means. Durations are seconds.

    Raises:
        SettingsError: a value is wrong. One line: the relay, the setting, what it got, what it takes.
    """

    name: str = "relay"
    batch: int = 500
    max_in_flight: int = 1000
    max_claims: int = 2
    poll_interval: float = POLL_INTERVAL
    publish_bound: float = 10.0
    store_bound: float = 10.0
    ready_within: float | None = 30.0
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    bound: float | None = None
    on_drain: OnDrain = "finish"
    after: Literal["http"] | None = None
    dead_holds_key: Callable[[str], bool] = dead_lets_key_go
    """Whether a dead letter of a topic holds its key back: the policy of the store."""

    def within(self, given: float | None) -> float:
        """Seconds in which what is in flight must be finished when a stop comes; `given` is what the service says."""
        return given or self.bound or STOPS_WITHIN

    def __post_init__(self) -> None:
        for count in ("batch", "max_in_flight", "max_claims"):
            value: object = getattr(self, count)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                self._refuse(count, "a whole number, 1 or more")
        for positive in ("poll_interval", "publish_bound", "store_bound"):
            if not _seconds(getattr(self, positive)) or getattr(self, positive) <= 0:
                self._refuse(positive, "seconds, more than 0")
        if self.ready_within is not None and (not _seconds(self.ready_within) or self.ready_within <= 0):
            self._refuse("ready_within", "seconds, more than 0, or None for never")
        if self.poll_interval > IDLE_CEILING:
            self._refuse("poll_interval", f"seconds, at most {IDLE_CEILING:g}")
        if self.bound is not None and not _seconds(self.bound):
            self._refuse("bound", "seconds, 0 or more, or None for the budget's")
        if self.on_drain not in ("finish", "cancel"):
            self._refuse("on_drain", '"finish" or "cancel"')
        if self.after not in (None, "http"):
            self._refuse("after", '"http" or None')

    def _refuse(self, setting: str, takes: str) -> None:
        raise SettingsError(f"relay {self.name!r}: {setting}: got {getattr(self, setting)!r}, takes {takes}")


def _seconds(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value) and value >= 0
