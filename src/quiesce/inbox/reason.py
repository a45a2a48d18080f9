"""Why a record was set aside, or is tried again later."""

from dataclasses import dataclass
from typing import Final

FAILED: Final = "failed"
"""The handler raised, and will again: by the class of its exception, or after too many attempts."""
UNDECODABLE: Final = "undecodable"
NO_EVENT_ID: Final = "no_event_id"
UNKNOWN_TYPE: Final = "unknown_type"
KEY_TOO_LARGE: Final = "key_too_large"
KILLED_ITS_PROCESS: Final = "killed_its_process"
"""Its process died so often while it was in hand that it is not begun again."""

CODES = frozenset({FAILED, UNDECODABLE, NO_EVENT_ID, UNKNOWN_TYPE, KEY_TOO_LARGE, KILLED_ITS_PROCESS})
"""The codes of this package. A user's own may stand beside them."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why, for programs (`code`) and for people.

    `error`: the class of the exception, or empty. `message`: what it said; it may be of any length, and is cut
    where it is written. `tries`: attempts that failed so far, or, of a record that killed its process, its deaths.
    `consumer`: the name of the consumer that gave it up.
    """

    code: str
    error: str
    message: str
    tries: int
    consumer: str

    @classmethod
    def of_error(cls, error: BaseException, tries: int, consumer: str, code: str = FAILED) -> "Reason":
        """The reason for what a handler or a decoder raised."""
        kind = type(error)
        name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        return cls(code, name, str(error), tries, consumer)
