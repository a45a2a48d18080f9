"""Installs a peer: `python install.py NAME`. Everything goes below `.venv-peers`; delete that to get it anew.

Status 0 if it is there. Otherwise 1, and the last line of standard error says what is missing.
"""

import os
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

HERE = Path(__file__).parent
PLACE = HERE / ".venv-peers"


class Missing(Exception):
    """Something that the peer needs is not here; the message is one line."""


def python_packages() -> None:
    """The peers from the package index, in an environment of their own."""
    place, wanted = PLACE / "python", (HERE / "requirements.txt").read_text()
    mark = place / ".installed"
    if mark.exists() and mark.read_text() == wanted:
        return
    venv.create(place, with_pip=True, clear=True)
    pip = [str(place / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    call([*pip, "--requirement", str(HERE / "requirements.txt")], "its packages could not be installed")
    mark.write_text(wanted)


def debezium() -> None:
    """Kafka Connect and Debezium's connector, as jars."""
    if shutil.which("java") is None and not os.environ.get("JAVA_HOME"):
        raise Missing("Java is not here: install Java 17 or newer, and Maven, which fetches its jars")
    place, pom = PLACE / "debezium", HERE / "debezium" / "pom.xml"
    mark = place / ".installed"
    if mark.exists() and mark.read_text() == pom.read_text():
        return
    if shutil.which("mvn") is None:
        raise Missing("Maven is not here: install it, it fetches the jars")
    shutil.rmtree(place, ignore_errors=True)
    fetch = ["dependency:copy-dependencies", f"-DoutputDirectory={place}"]
    call(["mvn", "-q", "-B", "-Dstyle.color=never", "-f", str(pom), *fetch], "its jars could not be fetched")
    mark.write_text(pom.read_text())


def seed() -> None:
    """The seeds' relay, built anew each time; Go looks what has changed."""
    if shutil.which("go") is None:
        raise Missing("Go is not here: install a toolchain, the program is built from its source")
    PLACE.mkdir(exist_ok=True)
    program = str(PLACE / "seed-relay")
    call(
        ["go", "build", "-o", program, "."],
        "it could not be built",
        HERE.parent / "seed_relay",
        {"GOTOOLCHAIN": "local"},
    )


def call(
    command: Sequence[str], failed: str, directory: Path = HERE, environment: Mapping[str, str] | None = None
) -> None:
    """Runs it to its end. Raises Missing with one line that tells the cause."""
    done = subprocess.run(
        command,
        cwd=directory,
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    if done.returncode != 0:
        raise Missing(f"{failed} (no network?): {cause(done.stdout) or f'status {done.returncode}'}")


def cause(output: str) -> str:
    """The first line that pip or Maven call an error, or the last line of all."""
    # Maven colours its first line whatever it is told.
    plain = re.sub(r"\x1b\[[\d;]*m", "", output)
    lines = [line.strip() for line in plain.splitlines() if line.strip()]
    marked = [line.partition("ERROR")[2].lstrip("]: ") for line in lines if line.startswith(("ERROR", "[ERROR]"))]
    return next(filter(None, marked), lines[-1] if lines else "")


INSTALL: dict[str, Callable[[], None]] = {
    "faststream-outbox": python_packages,
    "txoutbox": python_packages,
    "debezium": debezium,
    "seed": seed,
}


def main() -> int:
    _, name = sys.argv
    try:
        INSTALL[name]()
    except Missing as missing:
        print(missing, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
