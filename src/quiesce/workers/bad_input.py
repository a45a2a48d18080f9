"""Records that no handler can take, and what becomes of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from quiesce.errors import SettingsError
from quiesce.inbox import reason
from quiesce.inbox.record import Record
from quiesce.workers.handlers import Batches, OneForAll, Routes

Policy = Literal["dead_letter", "skip", "stop", "hold"]
"""Set it aside; go on without it, and count it; stop the service; or keep it, and its key, and say so."""

Decode = Callable[[Record], Any]


@dataclass(frozen=True, slots=True)
class BadInput:
    """What becomes of records that no handler can take. None stands for the safe default: `dead_letter` where the
    consumer has dead letters, else `hold`: nothing is lost, the key waits, the others go on.

    Args:
        undecodable: `decode` raised.
        no_event_id: the record has no event id and is to have one.
        unknown_type: no handler is named for its type or topic.
        key_too_large: the key has more than `max_key_bytes`.
        other: a handler raised an error with a `reason_code` of its own.
        max_key_bytes: the longest key that is taken.
        needs_event_id: whether every record must have an event id (the header `id`), as an inbox needs it.

    Raises:
        SettingsError: a value is wrong.
    """

    undecodable: Policy | None = None
    no_event_id: Policy | None = None
    unknown_type: Policy | None = None
    key_too_large: Policy | None = None
    other: Policy | None = None
    max_key_bytes: int = 8192
    needs_event_id: bool = False

    def __post_init__(self) -> None:
        for one in fields(self)[:5]:
            if getattr(self, one.name) not in (None, *get_args(Policy)):
                raise SettingsError(
                    f"setting {one.name!r} of BadInput: got {getattr(self, one.name)!r}, takes one of "
                    f"{', '.join(get_args(Policy))}"
                )
        if self.max_key_bytes < 1:
            raise SettingsError(f"setting 'max_key_bytes' of BadInput: got {self.max_key_bytes!r}, takes 1 or more")

    @property
    def wants_dead_letters(self) -> bool:
        return any(getattr(self, one.name) == "dead_letter" for one in fields(self)[:5])

    def policy(self, code: str, *, dead_letters: bool) -> Policy:
        given: Policy | None = getattr(self, code) if code in _CODES else self.other
        return given or ("dead_letter" if dead_letters else "hold")


MADE_HERE = frozenset({reason.NO_EVENT_ID, reason.UNKNOWN_TYPE, reason.KEY_TOO_LARGE})
"""Reasons that the sieve finds, and says in its own words."""

_CODES = MADE_HERE | {reason.UNDECODABLE}


@dataclass(frozen=True, slots=True)
class Bad:
    """A record that no handler can take."""

    record: Record
    code: str
    error: BaseException


@dataclass(slots=True)
class Sifted:
    """Records that a handler can take, with their values where they are decoded, and those that none can."""

    good: Sequence[Record]
    values: list[Any]
    bad: list[Bad]


class Sieve:
    """Looks at records before a handler gets them."""

    def __init__(self, handlers: Routes | Batches | OneForAll, decode: Decode | None, bad_input: BadInput) -> None:
        self._handlers = handlers
        self._decode = decode
        self._longest = bad_input.max_key_bytes
        self._needs_id = bad_input.needs_event_id
        self._keys_only = not self._needs_id and decode is None and not isinstance(handlers, Routes)

    def sift(self, records: Sequence[Record]) -> Sifted:
        """Tells them apart. Whether what `decode` raised is an outage, the caller has to see."""
        if self._keys_only and not self._key_too_large(records):
            return Sifted(records, [], [])
        good: list[Record] = []
        sifted = Sifted(good, [], [])
        for record in records:
            bad = self._look(record, sifted.values)
            if bad is None:
                good.append(record)
            else:
                sifted.bad.append(bad)
        return sifted

    def _key_too_large(self, records: Sequence[Record]) -> bool:
        longest = self._longest
        # Written out: half the time of `any`, and every record of every batch comes by.
        for record in records:
            key = record.key
            if key is not None and len(key) > longest:
                return True
        return False

    def _look(self, record: Record, values: list[Any]) -> Bad | None:
        if record.key is not None and len(record.key) > self._longest:
            told = ValueError(f"the key of {record} has {len(record.key)} bytes, at most {self._longest} are taken")
            return Bad(record, reason.KEY_TOO_LARGE, told)
        if self._needs_id and not record.event_id:
            return Bad(record, reason.NO_EVENT_ID, ValueError(f"{record} has no event id (header 'id')"))
        if isinstance(self._handlers, Routes) and self._handlers.of(record) is None:
            kind = record.topic if self._handlers.by == "topic" else record.header("type")
            told = ValueError(f"{record} is of {self._handlers.by} {kind!r}, for which there is no handler")
            return Bad(record, reason.UNKNOWN_TYPE, told)
        if self._decode is not None:
            try:
                values.append(self._decode(record))
            except Exception as error:  # noqa: BLE001 - told apart by whoever asks
                return Bad(record, reason.UNDECODABLE, error)
        return None
