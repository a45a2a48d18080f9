"""How long the command of a preStop hook sleeps, as far as that can be read from it."""

import re

_SLEEP = re.compile(r"(?:\S*/)?sleep((?:\s+\S+)+)")
_NUMBER = re.compile(r"(\d+(?:\.\d+)?|\.\d+)([smhd]?)")
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

_SHELLS = ("sh", "bash", "dash", "ash", "busybox")
_STEPS = re.compile(r"&&|\|\||[;&|\n]")
_BEFORE = re.compile(r"(?:[({!]|\b(?:then|else|do|exec|time|if)\b)\s*")
"""What may stand before a command: `{ sleep 5; }`, `then sleep 5`."""
_GOES_ROUND = ("for", "while", "until", "seq", "xargs", "eval", "function")


def slept(command: list[str]) -> float | None:
    """Seconds that the commands of this one sleep, one after the other; None where that cannot be read: there is no
    sleep, or it is inside a loop, or its length is a variable."""
    seconds = 0.0
    found = False
    for step in _steps(command):
        words = step.split()
        if not words:
            continue
        if words[0] in _GOES_ROUND or "()" in step:
            return None
        if (sleep := _SLEEP.fullmatch(step)) is not None:
            # GNU's adds its arguments up.
            numbers = [_NUMBER.fullmatch(word.strip("\"')}")) for word in sleep[1].split()]
            for number in numbers:
                if number is None:
                    return None
                seconds += float(number[1]) * _UNITS[number[2]]
            found = True
    return seconds if found else None


def _steps(command: list[str]) -> list[str]:
    """Each command of a script; the one that there is, where no shell runs it."""
    words = [word.rpartition("/")[2] for word in command]
    script = next((i for i, word in enumerate(words) if i and word.startswith("-") and word.endswith("c")), None)
    if script is None or words[0] not in _SHELLS or script + 1 >= len(command):
        return [" ".join(command)]
    steps = []
    for step in _STEPS.split(command[script + 1]):
        text = step.strip()
        while (before := _BEFORE.match(text)) is not None:
            text = text[before.end() :]
        # A command in brackets ends with one; a comment says nothing.
        steps.append(text.split(" #")[0].rstrip(")} "))
    return steps
