"""What `doctor` finds: one value a check, whatever room looked."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

Verdict = Literal["ok", "warn", "bad"]

VERDICTS: tuple[Verdict, ...] = ("ok", "warn", "bad")
"""From good to bad."""


@dataclass(frozen=True, slots=True)
class Check:
    """The outcome of one look. `bad` breaks a promise, or will; `warn` weakens one, or is worth a look."""

    name: str
    verdict: Verdict
    found: str
    advice: str = ""
    """What to do about it; empty where nothing need be done."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def worst(checks: Iterable[Check]) -> Verdict:
    """The worst verdict of all; `ok` where there are none."""
    return max((check.verdict for check in checks), key=VERDICTS.index, default="ok")
