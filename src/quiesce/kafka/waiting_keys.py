"""Keys that have to wait for one of their events. Pure."""

from collections.abc import Callable, Mapping, Sequence
from uuid import UUID

from quiesce.outbox.event import ClaimedEvent
from quiesce.outbox.outcome import Outcome, Retry

Refusals = Sequence[tuple[ClaimedEvent, Outcome]]


class Call:
    """One call of `publish`, and the keys that it leaves waiting, each with its topic and the position of its first
    such event."""

    __slots__ = ("over", "waiting")

    def __init__(self) -> None:
        self.waiting: dict[tuple[str, str], int] = {}
        self.over = False


class WaitingKeys:
    """Which events must not be sent since an earlier one of their key was not.

    What is wrong with a topic may be right again a moment later. Then the next event of the key would go where the
    one before it was refused. Whoever calls learns of the refusal when its call ends; until then, and for calls
    that were made before, it is kept here. A key on another topic is another one: nobody sees their order.
    """

    def __init__(self) -> None:
        self.dead_holds_key: Callable[[str], bool] = lambda topic: False
        """Whether a dead letter of this topic holds its key back."""
        self._calls: list[Call] = []
        self._not_judged = 0

    @property
    def none(self) -> bool:
        """Whether no key waits."""
        return not any(call.waiting for call in self._calls)

    def called(self) -> None:
        """A call was made. Sooner or later it is judged, or dropped."""
        self._not_judged += 1

    def dropped(self) -> None:
        self._not_judged -= 1
        self._forget()

    def judged(self, events: Sequence[ClaimedEvent], refusals: Refusals) -> tuple[Call, Refusals]:
        """The call's refusals, with those of the events that wait behind others."""
        self._not_judged -= 1
        call = Call()
        earlier = [one.waiting for one in self._calls if one.waiting]
        if refusals or earlier:
            refusals = self._behind(events, {event.id: outcome for event, outcome in refusals}, earlier, call)
        self._calls.append(call)
        self._forget()
        return call, refusals

    def _behind(
        self,
        events: Sequence[ClaimedEvent],
        refused: Mapping[UUID, Outcome],
        earlier: list[dict[tuple[str, str], int]],
        call: Call,
    ) -> Refusals:
        found: list[tuple[ClaimedEvent, Outcome]] = []
        for event in events:
            key = (event.topic, event.aggregate_id)
            outcome = refused.get(event.id)
            if outcome is None and any(
                waiting.get(key, event.position + 1) <= event.position for waiting in (call.waiting, *earlier)
            ):
                outcome = Retry("HELD: an earlier event of its key waits", 0.1, counts=False)
            if outcome is None:
                continue
            found.append((event, outcome))
            if isinstance(outcome, Retry) or self.dead_holds_key(event.topic):
                call.waiting.setdefault(key, event.position)
        return found

    def ended(self, call: Call) -> None:
        """Its caller knows its refusals."""
        call.over = True
        self._forget()

    def _forget(self) -> None:
        # A call that was made earlier and is not judged yet comes from somebody who did not know.
        if not self._not_judged:
            self._calls = [call for call in self._calls if not call.over]
