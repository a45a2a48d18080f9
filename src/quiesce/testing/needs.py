"""What tests need that may be missing here: by fixture or by mark, required of a run, or told at its end."""

import os
from collections.abc import Iterable, Mapping

from quiesce.errors import SettingsError, StartError
from quiesce.testing.shared_servers import TITLES

REQUIRE_VARIABLE = "QUIESCE_TEST_REQUIRE"
_BY_FIXTURE = {
    "postgres": "postgres",
    "own_postgres": "postgres",
    "kafka": "kafka",
    "own_kafka": "kafka",
    "tansu": "tansu",
    "pgbouncer": "pgbouncer",
}
_NOT_HERE = "not here: "


def refuse_missing(missing: Mapping[str, str]) -> None:
    """Hold what QUIESCE_TEST_REQUIRE names against the parts that cannot be had, each with the way to get it.

    Raises SettingsError for a name that is none, StartError for a part that is missing.
    """
    for part in filter(None, (name.strip() for name in os.environ.get(REQUIRE_VARIABLE, "").split(","))):
        if part not in TITLES:
            raise SettingsError(f"{REQUIRE_VARIABLE} got {part!r}: it takes {', '.join(TITLES)}")
        if part in missing:
            raise StartError(f"{REQUIRE_VARIABLE} names {part}, and it is missing. {missing[part]}")


def needed(test: str, fixtures: Iterable[str], marked: Iterable[str]) -> set[str]:
    """The parts that a test needs, by its fixtures and by its marks `needs`.

    Raises SettingsError, with the test's name, for a mark that names none.
    """
    parts = {_BY_FIXTURE[fixture] for fixture in fixtures if fixture in _BY_FIXTURE} | set(marked)
    if unknown := parts - set(TITLES):
        raise SettingsError(f"{test} needs {', '.join(unknown)}: it takes {', '.join(TITLES)}")
    return parts


def skip_reason(absent: Iterable[str]) -> str:
    """Why a test is skipped that needs these parts; `could_not_run` knows it again."""
    return _NOT_HERE + ", ".join(sorted(absent))


def could_not_run(skipped: Iterable[tuple[str, str]], missing: Mapping[str, str]) -> str | None:
    """One line: how many tests could not run in which files, and how to get what they need.

    `skipped` are the file and the reason of each test that was skipped. None when no part was the reason.
    """
    files: dict[str, list[str]] = {}
    for file, reason in skipped:
        _, found, absent = reason.partition(_NOT_HERE)
        if found:
            files.setdefault(absent, []).append(file)
    told = []
    for absent, where in files.items():
        parts = absent.split(", ")
        names = " and ".join(TITLES[part] for part in parts)
        advice = " ".join(missing.get(part, "") for part in parts)
        told.append(f"{len(where)} tests in {', '.join(sorted(set(where)))} need {names}. {advice}")
    return f"COULD NOT RUN: {'; '.join(told)}" if told else None
