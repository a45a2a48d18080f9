"""Tells systemd when the service is ready and when it stops (`Type=notify`)."""

import logging
import os
import socket

from quiesce.lifecycle import events as ev

VARIABLE = "NOTIFY_SOCKET"

log = logging.getLogger("quiesce.supervisor")


class SystemdObserver:
    """Sends READY=1 when ready, STOPPING=1 at T0, and each reason for not being ready as STATUS."""

    def __init__(self, address: str) -> None:
        # A name that begins with @ is in the abstract namespace, where names begin with a zero byte.
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._told = False

    def observe(self, event: ev.Event) -> None:
        match event:
            case ev.ReadinessChanged(ready=True):
                self._notify("READY=1\nSTATUS=ready")
            case ev.ReadinessChanged(ready=False, reason=reason):
                self._notify(f"STATUS=not ready: {_one_line(reason)}")
            case ev.StopRequested(reason=reason):
                self._notify(f"STOPPING=1\nSTATUS=stopping: {_one_line(reason)}")
            case _:
                pass

    def _notify(self, message: str) -> None:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
                # A full queue must not hold the shutdown.
                sock.setblocking(False)
                sock.sendto(message.encode(), self._address)
        except OSError as error:
            if not self._told:
                self._told = True
                log.warning("systemd cannot be notified through %s: %s", VARIABLE, error)


def from_environment() -> SystemdObserver | None:
    """An observer, where systemd has set NOTIFY_SOCKET."""
    address = os.environ.get(VARIABLE, "")
    return SystemdObserver(address) if address.startswith(("/", "@")) else None


def _one_line(text: str) -> str:
    return " ".join(text.split())
