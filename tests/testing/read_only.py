"""A place where a server cannot put its data."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

NOBODY = 65534


@contextlib.contextmanager
def read_only_directory() -> Iterator[Path]:
    """A directory that this process may not write. Root may write anywhere, so it steps down meanwhile."""
    directory = Path(tempfile.mkdtemp(prefix="read-only-", dir="/tmp"))
    directory.chmod(0o555)
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(NOBODY)
    try:
        yield directory
    finally:
        if is_root:
            os.seteuid(0)
        directory.rmdir()
