"""The event id that an inbox tells a duplicate by, and what is none."""

from uuid import UUID

from quiesce.errors import BadEventId, SettingsError
from quiesce.inbox.record import Record

EVENT_ID_HEADER = "id"
"""Where the outbox's relay writes it."""

MAX_EVENT_ID_BYTES = 512
"""Well below what one entry of an index holds."""

SEPARATOR = "\x1f"
"""The one character beside NUL that an id may not have: many ids travel as one text."""

_SHORT = 128


def event_id_of(record: Record, header: str = EVENT_ID_HEADER) -> str:
    """The event id of a record: its last header of this name, as text.

    The id is the producer's. It stays the same when the outbox sends an event again, through a retry topic, and when a
    dead letter is redriven; topic, partition and offset do not.

    Raises:
        BadEventId: the record has none, or none that can be kept. The message names topic, partition and offset.
    """
    for name, value in reversed(record.headers):
        if name == header and value is not None:
            try:
                # Not with replacements: two different ids would then be taken for one, and an event be lost.
                return checked_event_id(value.decode())
            except UnicodeDecodeError:
                raise BadEventId(
                    f"{record}: header {header!r} holds {len(value)} bytes that are no UTF-8. Takes the event id as "
                    "text; give `event_id=`, a function that makes text of yours"
                ) from None
            except BadEventId as error:
                raise BadEventId(f"{record}: header {header!r}: {error}") from None
    raise BadEventId(
        f"{record}: has no header {header!r}, so no duplicate could be told. Takes the producer's event id; where it "
        "is somewhere else, give `event_id=`, a function that finds it"
    )


def checked_event_id(event_id: str | UUID | None) -> str:
    """The id as text.

    Raises:
        BadEventId: it is missing, empty, blank, too long, or has a character that the database cannot keep.
    """
    if type(event_id) is str and len(event_id) <= _SHORT and _is_plain(event_id):
        # Nearly all of them, at a third of the cost.
        return event_id
    if isinstance(event_id, UUID):
        return str(event_id)
    if not isinstance(event_id, str):
        raise BadEventId(f"event id: got {type(event_id).__name__}, takes text or a UUID")
    if not event_id.strip():
        raise BadEventId(f"event id: got {event_id!r}, takes text that is not empty")
    _check_bytes(event_id)
    if "\0" in event_id or SEPARATOR in event_id:
        raise BadEventId(f"event id: got {event_id!r}, takes text without the characters U+0000 and U+001F")
    return event_id


def _is_plain(event_id: str) -> bool:
    return event_id.isascii() and event_id.isprintable() and not event_id.isspace() and event_id != ""


def _check_bytes(event_id: str) -> None:
    try:
        size = len(event_id.encode())
    except UnicodeEncodeError:
        raise BadEventId("event id: got a character that cannot be written as UTF-8, takes text that can") from None
    if size > MAX_EVENT_ID_BYTES:
        raise BadEventId(f"event id: got {size:,} bytes, takes {MAX_EVENT_ID_BYTES} at most")


def checked_consumer(consumer: object) -> str:
    """The consumer's name as an inbox keeps it.

    Raises:
        SettingsError: it is empty, or no text that can be kept.
    """
    if not isinstance(consumer, str) or not consumer.strip() or "\0" in consumer or len(consumer) > 200:
        raise SettingsError(
            f"inbox: consumer: got {consumer!r}, takes a name of at most 200 characters that stays the same for ever: "
            "under another name each event is new"
        )
    return consumer
