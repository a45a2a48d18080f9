"""A user's own settings, read from the environment: one line for each bad one, secrets hidden."""

import dataclasses
import os
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from quiesce.errors import SettingsError
from quiesce.supervisor.redaction import HIDDEN, is_secret, redacted
from quiesce.supervisor.setting_kinds import Kind, kind_of

T = TypeVar("T")


def read_settings(kind: type[T], environ: Mapping[str, str] | None = None) -> T:
    """An instance of `kind`: a dataclass, each field read from the variable of its name in capitals.

    Fields may be str, int, float, bool, a path, an enumeration, `Literal[...]`, several of them separated by
    commas (`tuple[str, ...]`, `list[int]`), or one of them or None. Those with `init=False` are left alone.
    A class that reads the environment by itself, such as one of pydantic-settings, is called without
    arguments, and what it finds wrong is told in the same form.

    Raises:
        SettingsError: one line that names each setting, what it got and what it takes.
    """
    if not dataclasses.is_dataclass(kind):
        return _read_by_itself(kind)
    environ = os.environ if environ is None else environ
    fields = [field for field in dataclasses.fields(kind) if field.init]
    # Before any value: a type that cannot be read is refused whether its variable is set or not.
    kinds = _kinds(kind, fields)
    values: dict[str, Any] = {}
    wrong: list[str] = []
    for field in fields:
        variable, takes = field.name.upper(), kinds[field.name].takes
        raw = environ.get(variable)
        if raw is None or (raw == "" and not kinds[field.name].is_text):
            if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
                wrong.append(f"{variable}: not set, takes {takes}")
            continue
        try:
            values[field.name] = kinds[field.name].convert(raw)
        except ValueError:
            wrong.append(f"{variable}: got {shown(field.name, raw)}, takes {takes}")
    if wrong:
        raise SettingsError("; ".join(wrong))
    try:
        return kind(**values)
    except ValueError as error:
        # What a `__post_init__` refuses; it is the user's text, so it says what it takes.
        raise SettingsError(_line(str(error), environ)) from None


def shown(name: str, value: str) -> str:
    """The value as it may be shown: nothing of a secret, a URL without its password."""
    return HIDDEN if is_secret(name) else repr(redacted(value))


def _kinds(kind: type, fields: typing.Iterable["dataclasses.Field[Any]"]) -> dict[str, Kind]:
    try:
        hints = typing.get_type_hints(kind)
    except NameError as error:
        raise SettingsError(f"settings class {kind.__name__}: a type cannot be found: {error}") from None
    kinds: dict[str, Kind] = {}
    for field in fields:
        try:
            kinds[field.name] = kind_of(hints[field.name])
        except TypeError as error:
            raise SettingsError(f"settings: {field.name.upper()}: {error}") from None
    return kinds


def _read_by_itself(kind: type[T]) -> T:
    try:
        return kind()
    except ValueError as error:
        problems = getattr(error, "errors", None)
        if not callable(problems):
            raise SettingsError(_line(str(error), os.environ)) from None
        raise SettingsError("; ".join(_problem(problem) for problem in problems())) from None


def _problem(problem: Mapping[str, Any]) -> str:
    name = "_".join(str(part) for part in problem.get("loc", ())) or "settings"
    got = problem.get("input")
    if problem.get("type") == "missing":
        said = "not set"
    elif isinstance(got, str | int | float):
        said = f"got {shown(name, str(got))}"
    else:
        # All of them at once, as for a check of the whole: secrets among them.
        said = f"got {type(got).__name__}"
    return f"{name.upper()}: {said}, {_line(str(problem.get('msg', 'is not valid')), os.environ)}"


def _line(text: str, environ: Mapping[str, str]) -> str:
    return " ".join(redacted(text, environ).split())
