"""A user's own settings, read from the environment: one line for each bad one, secrets hidden."""

import dataclasses
import os
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, Union
from urllib.parse import urlsplit, urlunsplit

from quiesce.errors import SettingsError

T = TypeVar("T")

SECRET_WORDS = ("password", "passwd", "secret", "token", "apikey", "api_key", "private", "credential")
TRUE, FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


def read_settings(kind: type[T], environ: Mapping[str, str] | None = None) -> T:
    """An instance of `kind`: a dataclass, each field read from the variable of its name in capitals.

    Fields may be str, int, float, bool, `tuple[str, ...]` (separated by commas), or one of them or None.
    A class that reads the environment by itself, such as one of pydantic-settings, is called without
    arguments, and what it finds wrong is told in the same form.

    Raises:
        SettingsError: one line that names each setting, what it got and what it takes.
    """
    if not dataclasses.is_dataclass(kind):
        return _read_by_itself(kind)
    environ = os.environ if environ is None else environ
    hints = typing.get_type_hints(kind)
    values: dict[str, Any] = {}
    wrong: list[str] = []
    for field in dataclasses.fields(kind):
        variable = field.name.upper()
        raw = environ.get(variable)
        if raw is None or (raw == "" and hints[field.name] is not str):
            if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
                wrong.append(f"{variable}: not set, takes {_takes(hints[field.name])}")
            continue
        try:
            values[field.name] = _convert(raw, hints[field.name])
        except ValueError:
            wrong.append(f"{variable}: got {shown(field.name, raw)}, takes {_takes(hints[field.name])}")
    if wrong:
        raise SettingsError("; ".join(wrong))
    try:
        return kind(**values)
    except ValueError as error:
        # What a `__post_init__` refuses; it is the user's text, so it says what it takes.
        raise SettingsError(str(error)) from error


def shown(name: str, value: str) -> str:
    """The value as it may be shown: nothing of a secret, a URL without its password."""
    if any(word in name.lower() for word in SECRET_WORDS):
        return "a value that is not shown"
    try:
        parts = urlsplit(value)
        password = parts.password
    except ValueError:
        return "a URL that cannot be read" if "://" in value else repr(value)
    if password:
        host = parts.netloc.rpartition("@")[2]
        return repr(urlunsplit(parts._replace(netloc=f"{parts.username}:***@{host}")))
    return repr(value)


def _read_by_itself(kind: type[T]) -> T:
    try:
        return kind()
    except ValueError as error:
        problems = getattr(error, "errors", None)
        if not callable(problems):
            raise SettingsError(str(error)) from error
        raise SettingsError("; ".join(_problem(problem) for problem in problems())) from None


def _problem(problem: Mapping[str, Any]) -> str:
    name = "_".join(str(part) for part in problem.get("loc", ())) or "settings"
    got = problem.get("input")
    missing = problem.get("type") == "missing"
    said = "not set" if missing else f"got {shown(name, str(got))}"
    return f"{name.upper()}: {said}, {problem.get('msg', 'is not valid')}"


def _convert(raw: str, hint: Any) -> Any:
    return _converter(hint)(raw.strip() if hint is not str else raw)


def _converter(hint: Any) -> Callable[[str], Any]:
    if hint is bool:
        return _bool
    if hint in (str, int, float):
        return typing.cast("Callable[[str], Any]", hint)
    origin = typing.get_origin(hint)
    if origin in (Union, types.UnionType):
        return _converter(next(arg for arg in typing.get_args(hint) if arg is not type(None)))
    if origin is tuple:
        item = _converter(typing.get_args(hint)[0])
        return lambda raw: tuple(item(part.strip()) for part in raw.split(",") if part.strip())
    raise SettingsError(f"settings: a field of type {hint} cannot be read from the environment")


def _bool(raw: str) -> bool:
    if raw.lower() in TRUE:
        return True
    if raw.lower() in FALSE:
        return False
    raise ValueError(raw)


def _takes(hint: Any) -> str:
    names = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
    if hint in names:
        return names[hint]
    origin = typing.get_origin(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(_takes(arg) for arg in typing.get_args(hint) if arg is not type(None))
    if origin is tuple:
        return f"{_takes(typing.get_args(hint)[0])}, several separated by commas"
    return str(hint)
