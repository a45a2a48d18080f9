"""A user's settings: what can be read, what is refused in one line, and what nobody gets to see."""

import dataclasses
import enum
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from quiesce.errors import SettingsError
from quiesce.supervisor.settings import read_settings, shown


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Everything:
    name: str = ""
    count: int = 0
    share: float = 0.0
    loud: bool = False
    mode: Literal["a", "b", 3] = "a"
    colour: Colour = Colour.RED
    where: Path = Path()
    topics: list[str] = field(default_factory=list)
    ports: tuple[int, ...] = ()
    pair: tuple[int, str] = (0, "")
    kinds: frozenset[Colour] = frozenset()
    maybe: int | None = None
    either: int | str = 0
    noted: Annotated[int, "a note"] = 0


@pytest.mark.parametrize(
    ("variable", "raw", "value"),
    [
        ("name", " as it is ", " as it is "),
        ("name", "", ""),
        ("count", " 7 ", 7),
        ("share", "inf", float("inf")),
        ("loud", "Yes", True),
        ("mode", "b", "b"),
        ("mode", "3", 3),
        ("colour", "blue", Colour.BLUE),
        ("where", "/var/lib/x", Path("/var/lib/x")),
        ("topics", "a, b,", ["a", "b"]),
        ("ports", "1,2", (1, 2)),
        ("pair", "1,x", (1, "x")),
        ("kinds", "red,blue", frozenset(Colour)),
        ("maybe", "", None),
        ("maybe", "4", 4),
        ("either", "5", 5),
        ("either", "five", "five"),
        ("noted", "6", 6),
    ],
)
def test_every_kind_that_can_be_read(variable: str, raw: str, value: object) -> None:
    read = read_settings(Everything, {variable.upper(): raw})
    assert getattr(read, variable) == value
    assert type(getattr(read, variable)) is type(value)


@pytest.mark.parametrize(
    ("variable", "raw", "takes"),
    [
        ("COUNT", "x", "a whole number"),
        ("SHARE", "nan", "a number"),
        ("LOUD", "maybe", "true or false"),
        ("MODE", "c", "one of a, b, 3"),
        ("COLOUR", "green", "one of red, blue"),
        ("PORTS", "1,x", "a whole number, several separated by commas"),
        ("PAIR", "1,x,y", "a whole number, text, separated by commas"),
        ("MAYBE", "x", "a whole number"),
    ],
)
def test_what_is_refused_says_what_it_takes(variable: str, raw: str, takes: str) -> None:
    with pytest.raises(SettingsError) as refused:
        read_settings(Everything, {variable: raw})
    assert str(refused.value) == f"{variable}: got {raw!r}, takes {takes}"


def test_all_that_is_wrong_stands_in_one_line() -> None:
    @dataclass
    class Two:
        port: int
        name: str
        share: float = 1.0

    with pytest.raises(SettingsError) as refused:
        read_settings(Two, {"SHARE": "much"})
    assert str(refused.value) == (
        "PORT: not set, takes a whole number; NAME: not set, takes text; SHARE: got 'much', takes a number"
    )


def test_a_field_that_the_class_sets_by_itself_is_left_alone() -> None:
    @dataclass
    class Derived:
        port: int
        address: str = field(init=False)

        def __post_init__(self) -> None:
            self.address = f"localhost:{self.port}"

    assert read_settings(Derived, {"PORT": "1"}).address == "localhost:1"
    assert read_settings(Derived, {"PORT": "1", "ADDRESS": "elsewhere"}).address == "localhost:1"


@pytest.mark.parametrize("environ", [{}, {"ODD": "1"}])
@pytest.mark.parametrize("odd", [complex, dict[str, int], list, Any])
def test_a_type_that_cannot_be_read_is_refused_whether_its_variable_is_set_or_not(
    odd: Any, environ: dict[str, str]
) -> None:
    kind = dataclasses.make_dataclass("Odd", [("odd", odd, field(default=None))])
    with pytest.raises(SettingsError, match=r"ODD: a field of type .* cannot be read from the environment"):
        read_settings(kind, environ)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("postgres://u:hunter2@h/db", "postgres://u:***@h/db"),
        ("postgresql+asyncpg://u:hunter2@h/db", "postgresql+asyncpg://u:***@h/db"),
        ("postgres://u:hunter2@h1,h2/db", "postgres://u:***@h1,h2/db"),
        ("postgres://u:hunt#er2@h/db", "postgres://u:***@h/db"),
        ("postgres://u:hunt?er2@h/db", "postgres://u:***@h/db"),
        ("postgres://u:hunt/er2@h/db", "postgres://u:***@h/db"),
        ("postgres://u:hunter2@[::1/db", "postgres://u:***@[::1/db"),
        ("postgres://h/db?user=u&password=hunter2", "postgres://h/db?user=u&password=***"),
        ("host=db user=u password=hunter2", "host=db user=u password=***"),
        ("host=db password='hunter2 and more' user=u", "host=db password=*** user=u"),
        ("sasl.password=hunter2", "sasl.password=***"),
        ("amqp://:hunter2@h", "amqp://:***@h"),
        ("https://hunter2@h/x", "https://***@h/x"),
        ("redis://h/0", "redis://h/0"),
        ("passengers=4", "passengers=4"),
    ],
)
def test_a_value_is_shown_without_its_password(value: str, told: str) -> None:
    assert shown("address", value) == repr(told)


@pytest.mark.parametrize(
    "name", ["db_pwd", "sasl_pass", "PASSPHRASE", "signing_key", "api_key", "AUTH", "my_token", "password", "salt"]
)
def test_nothing_of_a_secret_is_shown(name: str) -> None:
    assert "hunter2" not in shown(name, "hunter2")


def test_names_that_only_look_like_one_are_shown() -> None:
    assert shown("passengers", "many") == "'many'"
    assert shown("monkey", "many") == "'many'"


def test_what_a_class_says_is_told_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass
    class Checks:
        url: str
        db_pwd: str

        def __post_init__(self) -> None:
            raise ValueError(f"cannot use {self.url}\n with {self.db_pwd}")

    with pytest.raises(SettingsError) as refused:
        read_settings(Checks, {"URL": "postgres://u:hunter2@h/db", "DB_PWD": "correct horse"})
    assert str(refused.value) == "cannot use postgres://u:***@h/db with ***"
    assert refused.value.__cause__ is None, "a traceback would show it"

    class ByItself:
        def __init__(self) -> None:
            raise ValueError("could not parse postgres://u:hunter2@h/db, got correct horse")

    monkeypatch.setenv("DB_PWD", "correct horse")
    with pytest.raises(SettingsError) as refused:
        read_settings(ByItself)
    assert str(refused.value) == "could not parse postgres://u:***@h/db, got ***"

    class Problems(ValueError):
        def errors(self) -> list[dict[str, Any]]:
            return [
                {"loc": ("port",), "input": "x", "msg": "takes a number", "type": "int"},
                {"loc": (), "input": {"pwd": "correct horse"}, "msg": "got correct horse", "type": "value_error"},
                {"loc": ("url",), "input": None, "msg": "Field required", "type": "missing"},
            ]

    class LikePydantic:
        def __init__(self) -> None:
            raise Problems

    with pytest.raises(SettingsError) as refused:
        read_settings(LikePydantic)
    assert str(refused.value) == (
        "PORT: got 'x', takes a number; SETTINGS: got dict, got ***; URL: not set, Field required"
    )
