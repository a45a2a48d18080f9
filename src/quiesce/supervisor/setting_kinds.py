"""How the text of an environment variable becomes a value of the type that a field asks for."""

import enum
import math
import pathlib
import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

TRUE, FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


@dataclass(frozen=True, slots=True)
class Kind:
    """`convert` raises ValueError; `takes` says in words what it takes. `is_text`: an empty value is one."""

    convert: Callable[[str], Any]
    takes: str
    is_text: bool = False


def kind_of(hint: Any) -> Kind:
    """How a field of this type is read.

    Raises:
        TypeError: text cannot become one.
    """
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint in _PLAIN:
        return _PLAIN[hint]
    if origin in (typing.Union, types.UnionType):
        kinds = [kind_of(arg) for arg in args if arg is not type(None)]
        return Kind(lambda raw: _first_that_takes(kinds, raw), " or ".join(kind.takes for kind in kinds))
    if origin is typing.Literal:
        return _one_of({str(arg): arg for arg in args})
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return _one_of({str(member.value): member for member in hint})
    if isinstance(hint, type) and issubclass(hint, pathlib.PurePath):
        return Kind(hint, "a path")
    if origin in (tuple, list, set, frozenset) and args:
        return _several(origin, args)
    raise TypeError(f"a field of type {getattr(hint, '__name__', hint)} cannot be read from the environment")


def _several(origin: Callable[[Sequence[Any]], Any], args: tuple[Any, ...]) -> Kind:
    if origin is tuple and args[-1] is not Ellipsis:
        kinds = [kind_of(arg) for arg in args]
        takes = ", ".join(kind.takes for kind in kinds) + ", separated by commas"
        return Kind(lambda raw: tuple(k.convert(part) for k, part in zip(kinds, _parts(raw), strict=True)), takes)
    item = kind_of(args[0])
    return Kind(
        lambda raw: origin([item.convert(part) for part in _parts(raw)]), f"{item.takes}, several separated by commas"
    )


def _parts(raw: str) -> list[str]:
    return [part.strip() for part in raw.split(",") if part.strip()]


def _first_that_takes(kinds: Sequence[Kind], raw: str) -> Any:
    for kind in kinds[:-1]:
        try:
            return kind.convert(raw)
        except ValueError:
            continue
    return kinds[-1].convert(raw)


def _one_of(choices: dict[str, Any]) -> Kind:
    def convert(raw: str) -> Any:
        try:
            return choices[raw.strip()]
        except KeyError:
            raise ValueError(raw) from None

    return Kind(convert, "one of " + ", ".join(choices))


def _bool(raw: str) -> bool:
    if raw.strip().lower() in TRUE:
        return True
    if raw.strip().lower() in FALSE:
        return False
    raise ValueError(raw)


def _float(raw: str) -> float:
    value = float(raw)
    if math.isnan(value):
        raise ValueError(raw)
    return value


_PLAIN: dict[Any, Kind] = {
    str: Kind(str, "text", is_text=True),
    int: Kind(int, "a whole number"),
    float: Kind(_float, "a number"),
    bool: Kind(_bool, "true or false"),
}
