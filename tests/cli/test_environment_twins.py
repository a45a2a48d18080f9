"""The environment twins of flags: read for the verb that is run, and for no other."""

import argparse

import pytest

from quiesce.cli.flags import add_flag, add_repeated_flag, add_switch, read_environment, variable
from quiesce.cli.main import main, parser
from quiesce.errors import SettingsError

ORDERS = "quiesce.examples.order_service.main:orders"


def own_flags(verb: str) -> set[str]:
    """The flags of a verb, those of its own verbs included."""
    verbs = next(action for action in parser()._actions if isinstance(action, argparse._SubParsersAction))
    found: set[str] = set()
    left = [verbs.choices[verb]]
    while left:
        for action in left.pop()._actions:
            if isinstance(action, argparse._SubParsersAction):
                left += action.choices.values()
            else:
                found |= {option for option in action.option_strings if option.startswith("--")}
    return found - {"--help", "--version"}


def test_a_bad_twin_of_one_verb_stops_no_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    others = own_flags("run") | own_flags("demo") | own_flags("bench") | own_flags("budget")
    for flag in others - own_flags("outbox"):
        monkeypatch.setenv(variable(flag), "no value at all\n")
    assert main(["outbox", "schema", "show"]) == 0
    assert "CREATE TABLE" in capsys.readouterr().out


def test_a_bad_twin_of_its_own_stops_a_verb_unless_the_command_line_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("QUIESCE_WORKER", "relay")
    assert main(["budget", ORDERS, "--worker", "relay=3"]) == 0
    capsys.readouterr()
    assert main(["budget", ORDERS]) == 78
    assert "QUIESCE_WORKER: got 'relay', takes NAME=BOUND" in capsys.readouterr().err


@pytest.fixture
def one_verb() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser()
    add_flag(made, "--seconds", default=2.0, convert=float, help="seconds")
    add_repeated_flag(made, "--name", help="names")
    add_switch(made, "--quick", help="quick")
    return made


def read(made: argparse.ArgumentParser, *argv: str) -> dict[str, object]:
    arguments = made.parse_args(argv)
    read_environment(arguments)
    return vars(arguments)


def test_the_command_line_wins_over_the_environment_and_that_over_the_default(
    one_verb: argparse.ArgumentParser, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read(one_verb) == {"seconds": 2.0, "name": (), "quick": False}
    monkeypatch.setenv("QUIESCE_SECONDS", "3.5")
    monkeypatch.setenv("QUIESCE_NAME", "a, b")
    monkeypatch.setenv("QUIESCE_QUICK", "1")
    assert read(one_verb) == {"seconds": 3.5, "name": ("a", "b"), "quick": True}
    assert read(one_verb, "--seconds", "4", "--name", "c", "--name", "d") == {
        "seconds": 4.0,
        "name": ("c", "d"),
        "quick": True,
    }
    monkeypatch.setenv("QUIESCE_SECONDS", "")
    assert read(one_verb)["seconds"] == 2.0, "empty is not set"


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("QUIESCE_SECONDS", "soon", "QUIESCE_SECONDS: got 'soon'"),
        ("QUIESCE_QUICK", "yes", "QUIESCE_QUICK: got 'yes', takes 1 or 0"),
    ],
)
def test_what_a_flag_does_not_take_is_told(
    one_verb: argparse.ArgumentParser, monkeypatch: pytest.MonkeyPatch, name: str, value: str, said: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match=said):
        read(one_verb)
