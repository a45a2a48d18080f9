"""The termination message: what Kubernetes shows as the reason of a container's last end."""

import logging
import os
import stat

from quiesce.lifecycle.report import ShutdownReport, line_of_hang

VARIABLE = "QUIESCE_TERMINATION_LOG"
DEFAULT = "/dev/termination-log"
LIMIT = 4096
"""Bytes. Kubernetes cuts what is longer."""

log = logging.getLogger("quiesce.supervisor")


def message_of(report: ShutdownReport) -> str:
    """The report in a few lines: what went wrong comes first, so that a cut loses the least."""
    lines = [
        f"{report.service}: exit code {report.exit_code}, {report.reason}; "
        f"took {report.seconds:.2f} s of {report.available:.3g} s"
    ]
    lines += [f"error: {error}" for error in report.errors]
    lines += [f"hung: {line_of_hang(hang)}" for hang in report.hung]
    lines += [f"abandoned: {a.count} {a.what} ({a.worker})" for a in report.abandoned]
    lines += [f"overran: {p.part.value}, {p.seconds:.2f} s of {p.bound:.3g} s" for p in report.parts if p.overran]
    lines += [f"{p.part.value}: {p.seconds:.2f} s of {p.bound:.3g} s" for p in report.parts if not p.overran]
    return "\n".join(lines) + "\n"


def write(text: str) -> bool:
    """Writes the message, where the file exists; whether it did.

    Its path is QUIESCE_TERMINATION_LOG, by default /dev/termination-log; empty turns it off. Nothing is
    made that is not there: outside Kubernetes there is no such file.
    """
    path = os.environ.get(VARIABLE, DEFAULT)
    if not path:
        return False
    try:
        # Anything but a regular file could block us: a pipe that nobody reads, for one.
        if not stat.S_ISREG(os.stat(path).st_mode):
            return False
        # Cut at a whole character.
        content = text.encode()[:LIMIT].decode(errors="ignore").encode()
        with open(path, "wb") as file:
            file.write(content)
    except FileNotFoundError:
        return False
    except OSError as error:
        log.warning("the termination message cannot be written to %s: %s", path, error.strerror)
        return False
    return True
