"""The statements by which a consumer marks events as handled, the same for every driver."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar
from uuid import UUID

from quiesce.errors import InboxRefused
from quiesce.inbox.event_id import SEPARATOR, checked_consumer, checked_event_id

Id = TypeVar("Id", str, UUID, str | UUID)

# Somebody else who has the same mark in a transaction that is still open is waited for: it is a duplicate if that one
# commits, and new if it does not.
INSERT_ENTRY = (
    "INSERT INTO inbox_entry (consumer, event_id) VALUES ($1, $2) "
    "ON CONFLICT (event_id, consumer) DO NOTHING RETURNING true"
)

# In its migration stands what it answers, and why it is a function. As one text, since drivers look at each element
# of an array: that took a third of what marking costs the process.
MARK_ENTRIES = "SELECT inbox_mark($1::text, string_to_array($2::text, chr(31)))"

MISSING_STATES = frozenset({"42P01", "42703", "42883"})
"""SQLSTATEs of a table, a column and a function that is not there."""


def entry_values(consumer: str, event_id: str | UUID | None) -> tuple[str, str]:
    """The values of `INSERT_ENTRY`, which gives a row if the event is new.

    Raises:
        BadEventId: the id is missing, empty, too long, or cannot be kept.
        SettingsError: the consumer has no name.
    """
    return checked_consumer(consumer), checked_event_id(event_id)


@dataclass(frozen=True, slots=True)
class Entries(Generic[Id]):
    """Marks of many events at once: the values of `MARK_ENTRIES`, and what its answer means."""

    consumer: str
    given: Mapping[str, Id]
    """The ids as they were given, by their text."""

    @classmethod
    def checked(cls, consumer: str, event_ids: Iterable[str]) -> "Entries[str]":
        """For a consumer and ids that have been checked."""
        return Entries(consumer, {one: one for one in event_ids})

    @classmethod
    def of(cls, consumer: str, event_ids: Iterable[Id]) -> "Entries[Id]":
        """Raises BadEventId and SettingsError as `entry_values`; one id that is refused refuses all."""
        return cls(checked_consumer(consumer), {checked_event_id(one): one for one in event_ids})

    def __bool__(self) -> bool:
        return bool(self.given)

    @property
    def values(self) -> tuple[str, str]:
        """Each id once, sorted: two that mark the same ids in one order cannot wait for each other in a circle."""
        return self.consumer, SEPARATOR.join(sorted(self.given))

    def new(self, answer: Collection[str] | None) -> set[Id]:
        """The ids that are new, as they were given."""
        if answer is None:
            return set(self.given.values())
        return {self.given[text] for text in answer}


def no_transaction(advice: str) -> InboxRefused:
    """The error for a connection on which the mark would be committed at once. `advice` says what to write."""
    return InboxRefused(
        "an inbox takes a connection with an open transaction: outside of one the mark would be kept although the "
        f"handler failed, and the event be lost. {advice}"
    )
