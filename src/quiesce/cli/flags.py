"""Flags with a twin in the environment: `--log-format` is also QUIESCE_LOG_FORMAT.

The environment is read when the command line is parsed, and then only for the verb that is run: a bad twin of one verb
must not stop another.
"""

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from quiesce.errors import SettingsError


def variable(flag: str) -> str:
    """The environment twin of a flag such as `--log-format`."""
    return "QUIESCE_" + flag.lstrip("-").replace("-", "_").upper()


def add_flag(
    parser: argparse.ArgumentParser,
    flag: str,
    *,
    default: Any,
    help: str,
    convert: Callable[[str], Any] = str,
    choices: tuple[str, ...] | None = None,
    metavar: str | None = None,
) -> None:
    """Adds a flag that takes a value; the command line wins over the environment, which wins over `default`."""
    name = variable(flag)
    parser.add_argument(
        flag,
        default=_Twin(flag, default, convert, choices),
        type=convert,
        choices=choices,
        metavar=metavar,
        help=f"{help} [{name}]" + ("" if default is None else f" (default: {default})"),
    )


def add_repeated_flag(
    parser: argparse.ArgumentParser,
    flag: str,
    *,
    help: str,
    convert: Callable[[str], Any] = str,
    metavar: str | None = None,
) -> None:
    """Adds a flag that may be given several times; its value is a tuple. In the environment: comma separated."""
    name = variable(flag)
    default = _Twin(flag, (), lambda raw: tuple(convert(one.strip()) for one in raw.split(",")))
    parser.add_argument(
        flag,
        action=_Repeated,
        default=default,
        type=convert,
        metavar=metavar,
        help=f"{help}; may be repeated [{name}, comma separated]",
    )


class _Repeated(argparse.Action):
    """The first one on the command line takes the place of what the environment says; the others are added."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        before = getattr(namespace, self.dest)
        setattr(namespace, self.dest, (*(() if isinstance(before, _Twin) else before), values))


def add_switch(parser: argparse.ArgumentParser, flag: str, *, help: str) -> None:
    """Adds a flag without a value. In the environment it takes 1 or 0."""
    name = variable(flag)
    parser.add_argument(flag, action="store_true", default=_Twin(flag, False, _switched), help=f"{help} [{name}=1]")


def read_environment(arguments: argparse.Namespace) -> None:
    """Puts in place, for each flag that the command line did not name, what its twin says, or the default.

    Raises:
        SettingsError: a twin has a value that its flag does not take.
    """
    for name, value in vars(arguments).items():
        if isinstance(value, _Twin):
            setattr(arguments, name, value.read())


@dataclass(frozen=True, slots=True)
class _Twin:
    """Stands in place of a value that was not given on the command line."""

    flag: str
    default: Any
    convert: Callable[[str], Any]
    choices: tuple[str, ...] | None = None

    def read(self) -> Any:
        name = variable(self.flag)
        raw = os.environ.get(name)
        if raw is None or raw == "":
            return self.default
        try:
            value = self.convert(raw)
        except argparse.ArgumentTypeError as error:
            # A converter of ours: its message says what it got.
            raise SettingsError(f"{name}: {error}") from None
        except ValueError as error:
            raise SettingsError(f"{name}: got {raw!r}: {error}") from None
        if self.choices is not None and value not in self.choices:
            raise SettingsError(f"{name}: got {raw!r}, takes one of {', '.join(self.choices)}")
        return value


def _switched(raw: str) -> bool:
    if raw not in ("0", "1"):
        raise argparse.ArgumentTypeError(f"got {raw!r}, takes 1 or 0")
    return raw == "1"
