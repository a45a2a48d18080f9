"""How the process writes its log: standard `logging` to standard error, as text or as JSON lines."""

import contextlib
import json
import logging
import sys
import time
from typing import TextIO

from quiesce.supervisor.telling import FIELDS

FORMATS = ("text", "json")
LEVELS = ("debug", "info", "warning", "error")

_OF_EVERY_RECORD = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName", FIELDS}


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, and the traceback if there is one.

    Beside them stand the fields of the service's own events (`event`, `part`, `duration_seconds`, ...) and
    whatever a program of yours gives by `extra=`.
    """

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        given = {key: value for key, value in vars(record).items() if key not in _OF_EVERY_RECORD}
        entry = {
            **given,
            "time": f"{stamp}.{int(record.msecs):03d}Z",
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, FIELDS, {}),
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        # What JSON has no word for is shown as text: a log line must not raise.
        return json.dumps(entry, default=str)


class _Handler(logging.StreamHandler[TextIO]):
    """A line that cannot be written raises nothing, even where standard error has been closed meanwhile: it would
    surface in the middle of a shutdown."""

    def handleError(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError, ValueError):
            super().handleError(record)


def configure(style: str, level: str) -> None:
    """Sets up the root logger, unless the program that embeds us has done so."""
    root = logging.getLogger()
    if root.handlers:
        return
    # Started without a standard error (`2>&-`) there is still somebody who reads the other one.
    handler = _Handler(sys.stdout if sys.stderr is None else sys.stderr)
    if style == "json":
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(name)s %(message)s"))
    root.addHandler(handler)
    root.setLevel(level.upper())
