"""What Apache Kafka runs from: its jars, which Maven fetches, and Java."""

import contextlib
import functools
import os
import re
import shutil
import subprocess
from pathlib import Path

LIBS_VARIABLE = "QUIESCE_KAFKA_LIBS"
_LIBS = Path("tools", "kafka", "libs")
_LEAST_JAVA = 17
_JAVA_BOUND = 30.0
# A test broker lives for seconds: the quick compiler alone, a collector without threads, a small heap.
_JVM = (
    "-Xmx256m",
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-XX:-UsePerfData",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)


def find_libs() -> Path | None:
    """The directory of Kafka's jars: the one QUIESCE_KAFKA_LIBS names, else tools/kafka/libs of the checkout.

    The checkout is looked for upwards from the current directory, then from this package. None without one.
    """
    if named := os.environ.get(LIBS_VARIABLE):
        return Path(named).absolute()
    starts = (Path.cwd(), Path(__file__).parent)
    places = (step / _LIBS for start in starts for step in (start, *start.parents))
    return next((place for place in places if broker_jar(place)), None)


def broker_jar(libs: Path | None) -> Path | None:
    """The jar of the broker itself; its name ends with the version."""
    return min(libs.glob("kafka_2.*-*.jar"), default=None) if libs else None


def archive(libs: Path) -> Path:
    """Where `quiesce.testing.kafka_archive` leaves the classes of a broker, for quicker starts."""
    return libs / "broker-classes.jsa"


def missing(libs: Path | None) -> str | None:
    """None when a broker can be started from `libs`, else what is missing and how to get it."""
    version = java_version()
    if version is None:
        return f"Java is not here: install Java {_LEAST_JAVA} or newer, and Maven, which fetches Kafka's jars"
    if int(version.partition(".")[0]) < _LEAST_JAVA:
        return f"Java {version} is too old for Apache Kafka: install Java {_LEAST_JAVA} or newer"
    if broker_jar(libs) is None:
        return (
            f"Apache Kafka's jars are not in {libs or _LIBS}: run `make kafka` in a checkout (it needs Maven), "
            f"or name their directory in {LIBS_VARIABLE}"
        )
    return None


def java_command(libs: Path, *arguments: str) -> list[str]:
    """How to run a program of `libs`: more options for Java, the class, and what the program takes."""
    classes = archive(libs)
    quick = [f"-XX:SharedArchiveFile={classes}"] if classes.exists() else []
    return [java_program(), *_JVM, *quick, "-cp", f"{libs}/*", *arguments]


def java_program() -> str:
    """The Java of JAVA_HOME, else the one on the PATH."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home, "bin", "java")) if home else (shutil.which("java") or "java")


def java_version() -> str | None:
    """The version of the Java that would run the broker, or None without one."""
    return _java_version(java_program())


@functools.cache
def _java_version(program: str) -> str | None:
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=_JAVA_BOUND)
        if found := re.search(r'version "(\d[^"]*)"', done.stderr):
            return found[1]
    return None
