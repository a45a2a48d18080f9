"""Numbers that a measured relay leaves in a file, so that they can be read while it runs and after it was killed.

A line of text for each claim would cost the relay a system call, and its reader's time.
"""

import mmap
import os
import tempfile
from pathlib import Path
from typing import Self

_FIELDS = ("moved", "first_at", "last_at", "in_flight", "limit")
_SIZE = 8 * len(_FIELDS)


class Gauge:
    """One process writes, any number read. Each number is written at once, in one piece of memory.

    `moved`: events settled as dispatched. `first_at`, `last_at`: monotonic instants at which the first and the latest
    claim was settled, 0 before. `in_flight`, `limit`: events claimed and not settled, and how many may be.
    """

    def __init__(self, path: Path, *, make: bool = False) -> None:
        self.path = path
        number = os.open(path, os.O_RDWR | (os.O_CREAT if make else 0), 0o600)
        try:
            if make:
                os.ftruncate(number, _SIZE)
            self._map = mmap.mmap(number, _SIZE)
        finally:
            os.close(number)
        self._numbers = memoryview(self._map).cast("d")

    @classmethod
    def fresh(cls) -> Self:
        """One of its own in the temporary directory; a context manager that deletes it."""
        number, path = tempfile.mkstemp(prefix="quiesce-bench-")
        os.close(number)
        return cls(Path(path), make=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._numbers.release()
        self._map.close()
        self.path.unlink(missing_ok=True)

    def settled(self, moved: int, at: float) -> None:
        """A claim was settled."""
        if not self._numbers[1]:
            self._numbers[1] = at
        self._numbers[2] = at
        self._numbers[0] = moved

    def flying(self, events: int, limit: int) -> None:
        """So many are claimed and not settled now."""
        self._numbers[3] = events
        self._numbers[4] = limit

    @property
    def moved(self) -> int:
        return round(self._numbers[0])

    @property
    def first_at(self) -> float:
        return self._numbers[1]

    @property
    def last_at(self) -> float:
        return self._numbers[2]

    @property
    def in_flight(self) -> int:
        return round(self._numbers[3])

    @property
    def limit(self) -> int:
        return round(self._numbers[4])
