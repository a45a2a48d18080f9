"""One measured part of a bench: its figures beside what is asked of them, and its place in the JSON object."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quiesce.bench.cores import Shares
from quiesce.bench.figures import Figure
from quiesce.errors import SettingsError

_TAKES = "Takes a file of a former run, or one that is not there yet"


@dataclass(frozen=True, slots=True)
class Result:
    """What came of one part.

    Args:
        place: the keys that lead to it in the object, such as `("stores", "log")`.
        says: what it is, for people: a line above its figures.
        figures: each beside what is asked.
        facts: what else the object tells of it.
        cores: who used the cores meanwhile.
        missing: why it could not be measured; empty if it was. That fails nothing.
        failed: what went wrong while it was measured. That fails the whole.
    """

    place: tuple[str, ...]
    says: str
    figures: tuple[Figure, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    cores: Shares | None = None
    missing: str = ""
    failed: str = ""

    @property
    def passed(self) -> bool:
        """Whether nothing that is asked was missed."""
        return not self.failed and all(figure.passed is not False for figure in self.figures)

    def lines(self) -> Iterator[str]:
        if self.missing or self.failed:
            yield (
                f"{self.says}: not measured: {self.missing}" if self.missing else f"{self.says}: FAILED: {self.failed}"
            )
            return
        yield self.says
        for figure in self.figures:
            yield "  " + figure.line()
        if self.cores is not None and (told := self.cores.line()):
            yield "  " + told

    def as_json(self) -> dict[str, Any]:
        if self.failed:
            return {"failed": self.failed, "passed": False}
        if self.missing:
            return {"missing": self.missing}
        told: dict[str, Any] = {
            **self.facts,
            "figures": {figure.key: figure.as_json() for figure in self.figures},
            "passed": self.passed,
        }
        if self.cores is not None:
            told["load"] = self.cores.as_json()
        return told


def assembled(
    results: Iterable[Result], into: dict[str, Any] | None = None, *, beside: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """All of them in one object, each in its place; `into` is an earlier object, whose other parts are kept.

    `beside` stands with each, such as how it was measured: parts of one file may come from runs that differ.
    """
    whole: dict[str, Any] = {} if into is None else into
    for result in results:
        at = whole
        for key in result.place[:-1]:
            at = at.setdefault(key, {})
        at[result.place[-1]] = result.as_json() | dict(beside or {})
    return whole


def kept_everywhere(whole: Any) -> bool:
    """Whether the object has, at any depth, no figure that was missed and no part that failed."""
    if isinstance(whole, dict):
        if whole.get("passed") is False:
            return False
        return all(kept_everywhere(one) for one in whole.values())
    return True


def read_figures(path: Path) -> dict[str, Any]:
    """The object that a former run wrote; empty without one.

    Raises:
        SettingsError: the file holds something else, or there is no place for it.
    """
    if not path.parent.is_dir():
        raise SettingsError(f"--write: {path.parent} is no directory. Takes a file in one that is there")
    if not path.exists():
        return {}
    try:
        whole = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SettingsError(
            f"--write: {path} cannot be read: {error}. Takes a file of a former run, or none"
        ) from error
    if not isinstance(whole, dict):
        raise SettingsError(f"--write: {path} holds no JSON object. Takes a file of a former run, or none")
    return whole


def write_figures(path: Path, whole: Mapping[str, Any]) -> None:
    """Puts the object in its place as a whole, so that a run that is ended meanwhile leaves the former one."""
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    fresh.replace(path)
