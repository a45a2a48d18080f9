"""What becomes of a record whose handler has raised. Nothing here waits."""

import errno
import socket
from dataclasses import dataclass, field
from enum import Enum

from quiesce.errors import QuiesceError, SchemaMissing, SettingsError, Unavailable
from quiesce.lifecycle.backoff import Backoff

_AWAY = frozenset(
    {errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EHOSTDOWN, errno.ETIMEDOUT, errno.EPIPE}
)
_AWAY_STATES = ("08", "57P01", "57P02", "57P03", "57P05", "53", "25006", "28", "3D000", "42501")
"""SQLSTATEs of a server that is gone, going, not there yet, full, or a standby after a failover; or that refuses the
user, the database or a right: every record would fail alike until somebody grants it."""

TIMEOUTS = 10
"""Tries of one record for which a bare `TimeoutError` is taken for an outage. Beyond, it may be the record's own."""


class Verdict(Enum):
    OUTAGE = "outage"
    """A server is away. That is no fault of the record: it waits, and no attempt is counted."""
    AGAIN = "again"
    NEVER = "never"
    """It will fail again, whatever is waited for."""


@dataclass(frozen=True, slots=True)
class Retries:
    """When a record is tried again, and when it is given up.

    Args:
        attempts: failed attempts after which a record is given up: set aside where the consumer has dead letters, else
            tried on for ever.
        backoff: the waits between two tries of one record, with full jitter. Its key waits, others go on.
        never: classes of exceptions that will come again: the record is given up at the first.
        outages: classes that say that a server is away, besides those that are known to.
        counted: classes that count as attempts though they look like an outage.

    Raises:
        SettingsError: a value is wrong.
    """

    attempts: int = 10
    backoff: Backoff = field(default_factory=lambda: Backoff(first=0.5, ceiling=30.0))
    never: tuple[type[BaseException], ...] = ()
    outages: tuple[type[BaseException], ...] = ()
    counted: tuple[type[BaseException], ...] = ()

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise SettingsError(f"setting 'attempts' of Retries: got {self.attempts!r}, takes 1 or more")

    def judge(self, error: BaseException) -> Verdict:
        """What the exception of a handler means.

        An attribute `retryable = False` of the exception says that it will come again; the errors of this package
        have it, and most are as one of `never`; a missing schema and a wrong setting are waited for like an outage.
        """
        if isinstance(error, self.never):
            return Verdict.NEVER
        if isinstance(error, self.counted):
            return Verdict.AGAIN
        if isinstance(error, self.outages) or is_outage(error):
            return Verdict.OUTAGE
        return Verdict.NEVER if getattr(error, "retryable", None) is False else Verdict.AGAIN

    def is_doubtful(self, error: BaseException) -> bool:
        """Whether it looks like an outage and may as well be the record's own fault: a `TimeoutError` that says nothing
        of a server."""
        if isinstance(error, BaseExceptionGroup):
            return all(self.is_doubtful(one) for one in error.exceptions)
        bare = isinstance(error, TimeoutError) and error.errno is None and getattr(error, "sqlstate", None) is None
        return bare and not isinstance(error, self.outages)

    def spent(self, tries: int) -> bool:
        return tries >= self.attempts


def is_outage(error: BaseException) -> bool:
    """Whether it says that a server is away, or not usable by anybody: the network's errors, and those of the
    PostgreSQL drivers, which are known by what they carry, since this room imports none of them."""
    if isinstance(error, QuiesceError):
        # A forgotten migration or a wrong setting is no fault of a record either. It is held until somebody mends it.
        return isinstance(error, Unavailable | SchemaMissing | SettingsError)
    if isinstance(error, BaseExceptionGroup):
        return all(is_outage(one) for one in error.exceptions)
    if isinstance(error, ConnectionError | TimeoutError | socket.gaierror):
        return True
    if isinstance(error, OSError) and error.errno in _AWAY:
        return True
    if getattr(error, "connection_invalidated", False) is True:
        return True
    wrapped = getattr(error, "orig", None)
    if isinstance(wrapped, BaseException):
        return is_outage(wrapped)
    state = getattr(error, "sqlstate", None)
    if isinstance(state, str):
        return state.startswith(_AWAY_STATES)
    family = type(error).__module__.partition(".")[0]
    if family in ("psycopg", "psycopg_pool"):
        # No state: the server was not asked, or has not answered.
        return any(kind.__name__ == "OperationalError" for kind in type(error).__mro__)
    if family == "asyncpg":
        return any(kind.__name__ == "InterfaceError" for kind in type(error).__mro__) and "clos" in str(error)
    return False
