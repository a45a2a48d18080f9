"""Commands that start processes of their own, and leave none behind."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def unwound() -> Iterator[None]:
    """SIGTERM ends what is inside as an error would, with status 143. By itself it ends this process alone, and what
    was started lives on. On the main thread."""
    former = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)
