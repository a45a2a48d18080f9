"""How long marks have to be kept: at least as long as the topics keep the records that they are about."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from math import inf
from typing import Literal

from quiesce.errors import SettingsError


@dataclass(frozen=True, slots=True)
class Kept:
    """How long a topic keeps a record, in seconds; `inf` for ever.

    `why`: the setting that says so. `longer`: how much longer a record may be there, since a topic is deleted segment
    by segment, each once its last record is old enough.
    """

    seconds: float
    topic: str
    why: str
    longer: float = 0.0


AsksTopics = Callable[[], Awaitable[Kept]]
"""Asks the brokers how long they keep what they keep longest, such as `quiesce.kafka.TopicRetention`."""

TopicsKeep = float | AsksTopics | Literal["unchecked"]
"""Seconds, or somebody to ask, or the word that says that nobody shall look."""


async def answered(keep: TopicsKeep) -> Kept | None:
    """What the topics keep, asked for where it has to be; None where nobody shall look.

    Raises:
        SettingsError: it is none of these, or the topics cannot be asked as the settings are.
        Unavailable: the brokers do not answer.
    """
    if keep == "unchecked":
        return None
    if callable(keep):
        return await keep()
    if isinstance(keep, bool | str) or not keep >= 0:
        raise SettingsError(
            f"inbox: topics_keep: got {keep!r}, takes seconds, or TopicRetention(...) that asks the brokers, or "
            "'unchecked'"
        )
    return Kept(float(keep), "a topic", "as given")


def checked_age(older_than: float, kept: Kept | None) -> float:
    """The age above which marks may go.

    Raises:
        SettingsError: it is no age, or a record may come again when its mark has gone.
    """
    if not 0 <= older_than < 1e9:
        raise SettingsError(f"inbox: older_than: got {older_than}, takes seconds, 0 or more")
    if kept is None or older_than >= kept.seconds:
        return older_than
    if kept.seconds == inf:
        raise SettingsError(
            f"inbox: older_than: got {age(older_than)}, and {kept.topic} keeps its records for ever ({kept.why}): one "
            "that is read again after its mark has gone would be handled twice. Marks have to stay; where nobody "
            "will read so far back, say topics_keep='unchecked' (--unchecked)"
        )
    raise SettingsError(
        f"inbox: older_than: got {age(older_than)}, takes {age(kept.seconds)} or more: so long {kept.topic} keeps its "
        f"records ({kept.why}), and one that is read again after its mark has gone would be handled twice. To do it "
        "all the same, say topics_keep='unchecked' (--unchecked)"
    )


def short_of(older_than: float, kept: Kept | None) -> str | None:
    """What to warn of: records that the topic still has, since their segment is not yet closed and old."""
    if kept is None or older_than >= kept.seconds + kept.longer:
        return None
    return (
        f"{kept.topic} deletes whole segments, so a record may be there for {age(kept.seconds + kept.longer)} "
        f"(retention.ms and segment.ms); marks go after {age(older_than)}"
    )


def age(seconds: float) -> str:
    """Seconds for people, such as `7 d` or `90 s`, never rounded."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:,.0f} {unit}"
    return f"{seconds:,.10g} s"
