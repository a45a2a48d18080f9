"""What a log says of an exception that user code raised: its class and where, and not its text.

The text is of others' making and may hold what was in the record: a pydantic error shows the value that it refused, a
PostgreSQL error the row that was there before.
"""

import sysconfig
from traceback import walk_tb
from typing import TypeVar

_NOT_THEIRS = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


ErrorT = TypeVar("ErrorT", bound=BaseException)

_ASKED = ("retryable", "reason_code", "sqlstate", "connection_invalidated", "orig", "errno")
"""What is read of an exception to judge it."""


class IllegibleError(Exception):
    """Stands for an exception that raises when it is read: by its own `__str__`, or a property."""


def legible(error: ErrorT) -> "ErrorT | IllegibleError":
    """The exception, or what stands for it where it cannot be read: one record's exception must not end them all."""
    try:
        str(error)
        for name in _ASKED:
            getattr(error, name, None)
    except Exception as why:  # noqa: BLE001 - it is of others' making
        kind = type(error)
        found = IllegibleError(
            f"{kind.__module__}.{kind.__qualname__}, which raises {type(why).__name__} when it is read"
        )
        return found.with_traceback(error.__traceback__)
    return error


def raised(error: BaseException, *, made_here: bool = False) -> str:
    """For people: `shop.errors.NoSuchProduct at handlers.py:41 in on_order`, with the SQLSTATE where there is one.

    Of the frames it is the last one outside of installed packages: the user's line that led there.

    `made_here`: if it was never raised, its text is ours, and shown; as that of this package's classes is.
    """
    told = str(error) if isinstance(error, IllegibleError) else _named(error)
    if error.__traceback__ is None:
        ours = made_here or type(error).__module__.startswith("quiesce.")
        return f"{told}: {error}" if ours else told
    if error.__cause__ is not None:
        told += f", from {_named(error.__cause__)}"
    frames = [(frame.f_code, line) for frame, line in walk_tb(error.__traceback__)]
    theirs = [one for one in frames if not one[0].co_filename.startswith(_NOT_THEIRS)]
    code, line = (theirs or frames)[-1]
    file = code.co_filename.replace("\\", "/").rpartition("/")[2]
    return f"{told} at {file}:{line} in {code.co_name}"


def _named(error: BaseException) -> str:
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    state = getattr(error, "sqlstate", None)
    return f"{name} {state}" if isinstance(state, str) and len(state) == 5 and state.isalnum() else name
