"""What every kind of worker is asked for, and how a wrong value is refused."""

from collections.abc import Callable
from functools import partial
from math import isfinite, nan
from typing import Literal

from quiesce.errors import SettingsError
from quiesce.lifecycle.ports import OnDrain

After = Literal["http"] | None
"""The edge after which a worker gets its stop token: `"http"`, the end of the HTTP drain, or None, at once."""


def worker_name(name: str | None, fn: Callable[..., object]) -> str:
    """The name given, or that of the function."""
    while isinstance(fn, partial):
        fn = fn.func
    return name or getattr(fn, "__name__", None) or type(fn).__name__


def check_terms(name: str, bound: float | None, on_drain: OnDrain, after: After) -> None:
    """Refuses terms that no service could keep.

    Raises:
        SettingsError: names the worker, the argument, what it got and what it takes.
    """
    if bound is not None:
        check_seconds(name, "bound", bound)
    if on_drain not in ("finish", "cancel"):
        raise SettingsError(f'worker {name!r}: on_drain: got {on_drain!r}, takes "finish" or "cancel"')
    if after not in (None, "http"):
        raise SettingsError(f'worker {name!r}: after: got {after!r}, takes "http" or None')


def check_seconds(name: str, argument: str, value: object, *, above: float | None = None) -> None:
    """Refuses what is not a number of seconds, 0 or more, or more than `above`.

    Raises:
        SettingsError: see `check_terms`.
    """
    seconds = value if isinstance(value, int | float) and not isinstance(value, bool) else nan
    if not isfinite(seconds) or (seconds < 0 if above is None else seconds <= above):
        least = "0 or more" if above is None else f"more than {above:g}"
        raise SettingsError(f"worker {name!r}: {argument}: got {value!r}, takes seconds, {least}")


def check_count(name: str, argument: str, value: object) -> None:
    """Refuses what is not a whole number of 1 or more.

    Raises:
        SettingsError: see `check_terms`.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise SettingsError(f"worker {name!r}: {argument}: got {value!r}, takes a whole number, 1 or more")
