"""Make Kafka start in half the time: `python -m quiesce.testing.kafka_archive`, once after its jars were fetched.

Most of a broker's start is Java loading and checking 7,000 classes. Java can write them into an archive when
a broker ends, and map them from there afterwards. An archive that does not fit (another Java, other jars) is
ignored by Java, so it is never wrong, only useless. `make kafka` runs this.
"""

import contextlib
import sys

from quiesce.errors import StartError
from quiesce.testing.kafka import LocalKafka
from quiesce.testing.kafka_programs import archive, find_libs, missing

_RECORDING_BOUND = 120.0


def record() -> None:
    """Start a broker, use it, and end it with an archive of what it had loaded beside its jars.

    Raises StartError when the broker cannot be started.
    """
    libs = find_libs()
    reason = missing(libs)
    if libs is None or reason:
        raise StartError(reason or "Apache Kafka is not here")
    written = archive(libs)
    fresh = written.with_suffix(".new")
    written.unlink(missing_ok=True)
    with LocalKafka(libs=libs, jvm=[f"-XX:ArchiveClassesAtExit={fresh}"]) as broker:
        with contextlib.suppress(StartError):  # without a client the archive is only a little smaller
            broker.create_topic("recorded")
        broker.stop(timeout=_RECORDING_BOUND)
    if not fresh.exists():
        raise StartError(f"Java wrote no archive to {fresh}")
    fresh.replace(written)


if __name__ == "__main__":
    try:
        record()
    except StartError as error:
        sys.exit(str(error))
