"""A handler whose effect is there once: mark, handler and commit in one transaction, whatever the driver."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

from quiesce.errors import BadEventId, RecordFailed
from quiesce.inbox.entries import Entries
from quiesce.inbox.event_id import checked_consumer, checked_event_id, event_id_of
from quiesce.inbox.record import Record

Connection = TypeVar("Connection")
Transaction = Callable[[], AbstractAsyncContextManager[Connection]]
"""Opens a transaction on a connection of its own; commits at the end, or rolls back on an error."""


@dataclass(frozen=True, slots=True)
class Duplicates:
    """What a handler returns that has left out records, since their events were handled before. The consumer counts
    them."""

    records: int


class Values(list[Any]):
    """The decoded values of a batch, each of the record in its place. A list of its own kind, so that whoever leaves
    out a record knows to leave out its value, too."""


SWALLOWED = (
    "the handler kept an error of the database to itself, so its transaction is aborted, and nothing of it can be "
    "committed. Put a statement that may fail into a savepoint"
)

Mark = Callable[[Connection, str, str], Awaitable[bool]]
MarkAll = Callable[[Connection, Entries[str]], Awaitable[set[str]]]
EventId = Callable[[Record], str]
Once = Callable[..., Awaitable[Duplicates | None]]
"""What `once` and `once_batch` make."""


def once_each(
    transaction: Transaction[Connection],
    mark: Mark[Connection],
    consumer: str,
    handler: Callable[..., Awaitable[object]],
    event_id: EventId,
) -> Once:
    """A handler of single records that calls `handler(record, connection, *args)` for those that are new."""
    checked_consumer(consumer)
    identify = _checking(event_id)

    async def handle(record: Record, *args: Any) -> Duplicates | None:
        # Before a connection is taken: bad input must not depend on the database.
        identity = identify(record)
        async with transaction() as connection:
            if not await mark(connection, consumer, identity):
                return Duplicates(1)
            await handler(record, connection, *args)
        return None

    return handle


def once_batch(
    transaction: Transaction[Connection],
    mark: MarkAll[Connection],
    consumer: str,
    handler: Callable[..., Awaitable[object]],
    event_id: EventId,
) -> Once:
    """A handler of batches that calls `handler(records, connection, *args)` with those that are new, in their order.

    Of an event that is in the batch twice the first record is taken.
    """
    checked_consumer(consumer)
    identify = _checking(event_id)

    async def handle(records: Sequence[Record], *args: Any) -> Duplicates | None:
        try:
            identities = [identify(record) for record in records]
        except BadEventId:
            _name_the_bad_one(records, identify)
            raise
        async with transaction() as connection:
            new = await mark(connection, Entries.checked(consumer, identities))
            if len(new) == len(records):
                await handler(records, connection, *args)
                return None
            places = _first_of(new, identities)
            if places:
                await handler([records[place] for place in places], connection, *_of_places(places, args))
        return Duplicates(len(records) - len(places))

    return handle


def _checking(event_id: EventId) -> EventId:
    """The same for ids that are made by a function of the user's: it may give anything."""
    if event_id is event_id_of:
        return event_id

    def checking(record: Record) -> str:
        try:
            return checked_event_id(event_id(record))
        except BadEventId as error:
            raise BadEventId(f"{record}: {error}") from None

    return checking


def _name_the_bad_one(records: Sequence[Record], identify: EventId) -> None:
    """So that the consumer need not split the batch to find it."""
    for record in records:
        try:
            identify(record)
        except BadEventId as error:
            raise RecordFailed(record) from error


def _first_of(new: set[str], identities: Sequence[str]) -> list[int]:
    """The places of the first record of each new event."""
    places = []
    for place, identity in enumerate(identities):
        if identity in new:
            new.remove(identity)
            places.append(place)
    return places


def _of_places(places: Sequence[int], args: Sequence[Any]) -> list[Any]:
    return [Values(one[place] for place in places) if isinstance(one, Values) else one for one in args]
