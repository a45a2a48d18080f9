"""Which of PostgreSQL's errors are no fault of a record, whatever the driver that brings them."""

from quiesce.errors import TransactionConflict, Unavailable

# 57P01 to 57P03: it shuts down, has crashed, starts up. 57P05: it ended an idle session. 25006: it became a standby.
_STATES = frozenset({"57P01", "57P02", "57P03", "57P05", "25006"})
# 08: the connection. 53: no connection, no disk, no memory left.
_CLASSES = ("08", "53")
# 28: the user is refused, such as after its password was changed. 3D000: no such database. 42501: a right is missing.
_REFUSED = ("28", "3D000", "42501")
_CONFLICTS = frozenset({"40001", "40P01"})


def says_away(error: BaseException) -> bool:
    """Whether the error's SQLSTATE is one of an outage. A statement's time limit is none: it belongs to what the
    statement was about."""
    state = _state(error)
    return state in _STATES or state.startswith(_CLASSES)


def meaning_of(error: BaseException, *, lost: bool = False) -> Unavailable | None:
    """What a consumer is told, so that it holds what it has and counts no attempt; None for an error that is the
    handler's own. `lost`: the connection is known to be gone.
    """
    if _state(error) in _CONFLICTS:
        return TransactionConflict(f"another transaction was in the way: {_told(error)}")
    return away(error) if lost or says_away(error) or _is_refused(error) else None


def away(error: BaseException) -> Unavailable:
    """For an error that is known to be no fault of a record: an outage, or a server that refuses us."""
    if _is_refused(error):
        return Unavailable(f"the database refuses us, mend its user, password, name or rights: {_told(error)}")
    return Unavailable(f"the database went away, has no room, or cannot be used: {_told(error)}")


def hangs(cancelled: BaseException, what: str) -> None:
    """Has the cancel of a handler say that its database did not answer to `what`: at the handler's bound that makes an
    outage of it, and no attempt."""
    cancelled.__cause__ = Unavailable(f"the database hangs: it did not answer to {what}")


def _is_refused(error: BaseException) -> bool:
    return _state(error).startswith(_REFUSED)


def _state(error: BaseException) -> str:
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    return state if isinstance(state, str) else ""


def _told(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
