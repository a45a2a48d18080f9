"""Apache Kafka itself for tests: one broker that is its own controller (KRaft), run from jars with Java."""

import os
import signal
import subprocess
import uuid
import weakref
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from quiesce.errors import StartError
from quiesce.testing.kafka_address import KafkaAddress
from quiesce.testing.kafka_programs import broker_jar, find_libs, java_command, missing
from quiesce.testing.kafka_settings import broker_settings, with_users, write_settings
from quiesce.testing.loopback import answers, free_port
from quiesce.testing.process import GuardedProcess, fresh_directory, remove_directory, spawn, told, wait_until

_FORMAT_BOUND = 60.0
_START_BOUND = 60.0
_PORT_ATTEMPTS = 3


class LocalKafka:
    """A Kafka broker of our own in a fresh directory, on a free loopback port.

    Use it as a context manager, or call `start()` and `close()`. `stop()` keeps the log, and `start()` after
    it (or after `kill()`) comes back on the same port with the same topics, records and offsets. It never
    outlives this process. `properties` are added to the broker's settings or replace them; `below` is the
    directory to put the data in (the temporary directory by default); `jvm` are more options for Java.

    Topics are not created by use: call `create_topic`.

    With `users` (names and passwords) the broker has a second listener, `sasl_bootstrap`: SASL PLAIN without
    TLS, and an authorizer that lets these users do only what an ACL allows. The plain listener's clients may
    do everything, so tests grant rights there (`address.allow`).
    """

    def __init__(
        self,
        *,
        properties: Mapping[str, str] | None = None,
        below: Path | None = None,
        libs: Path | None = None,
        jvm: Sequence[str] = (),
        users: Mapping[str, str] | None = None,
    ) -> None:
        self._users = dict(users or {})
        self._sasl_port = 0
        self._properties = dict(properties or {})
        self._jvm = tuple(jvm)
        self._below = below
        self._libs = libs or find_libs()
        self._directory: Path | None = None
        self._process: GuardedProcess | None = None
        self.port = 0
        self._controller_port = 0

    @staticmethod
    def available(libs: Path | None = None) -> str | None:
        """None when a broker can be started, else what is missing and how to get it."""
        return missing(libs or find_libs())

    @property
    def version(self) -> str:
        """The broker's version, such as `4.3.1`; known before the start. Raises StartError without the jars."""
        jar = broker_jar(self._libs)
        if jar is None:
            raise StartError(missing(self._libs) or "Apache Kafka's jars are missing")
        return jar.stem.rpartition("-")[2]

    @property
    def bootstrap(self) -> str:
        """The address for `bootstrap.servers`."""
        return f"127.0.0.1:{self.port}"

    @property
    def sasl_bootstrap(self) -> str:
        """The address for clients with a user and a password; there is one only with `users`."""
        return f"127.0.0.1:{self._sasl_port}"

    @property
    def address(self) -> KafkaAddress:
        return KafkaAddress(self.bootstrap)

    @property
    def directory(self) -> Path:
        """Where the data, the settings and the log (`kafka.log`) are."""
        if self._directory is None:
            raise StartError("this Kafka broker was not started, or is closed")
        return self._directory

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.alive

    @property
    def pid(self) -> int:
        """The broker's process id."""
        return self._broker.pid

    def start(self) -> Self:
        """Start the broker and wait until clients can use it; does nothing when it runs.

        Raises StartError with one line that names the cause: no Java, no jars, no place for the data, what
        the broker itself said.
        """
        if self.running:
            return self
        if reason := missing(self._libs):
            raise StartError(reason)
        fixed_port = self.port != 0
        for attempt in range(_PORT_ATTEMPTS):
            try:
                if self._directory is None:
                    self._make_storage()
                self._run_broker()
                break
            except StartError as error:
                self._process = None
                # Somebody took a port between our look and the broker's. The port is part of the storage, so
                # that is made anew.
                if fixed_port or attempt == _PORT_ATTEMPTS - 1 or "already in use" not in str(error):
                    raise
                self.close()
        self.address.warm()
        return self

    def stop(self, timeout: float = 15.0) -> None:
        """End the broker in order, by SIGKILL after `timeout` seconds. Its log stays."""
        if self._process:
            self._process.end(signal.SIGTERM, timeout)
            self._process = None

    def restart(self, timeout: float = 15.0) -> None:
        """`stop` and `start`: same port, same log."""
        self.stop(timeout)
        self.start()

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone. The log stays, as much of it as the broker had written."""
        if self._process:
            self._process.kill()
            self._process = None

    def pause(self) -> None:
        """SIGSTOP: connections stay open and nobody answers."""
        self._broker.pause()

    def resume(self) -> None:
        """Let a paused broker go on."""
        self._broker.resume()

    def close(self) -> None:
        """End the broker at once and delete its directory."""
        self.kill()
        if self._directory:
            self._remove()
            self._directory = None

    def create_topic(self, name: str, partitions: int = 3, config: Mapping[str, str] | None = None) -> None:
        """Create a topic and wait until every partition has a leader."""
        self.address.create_topic(name, partitions, config)

    def delete_topic(self, name: str) -> None:
        """Delete a topic. A missing one is fine."""
        self.address.delete_topic(name)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _broker(self) -> GuardedProcess:
        if self._process is None:
            raise StartError("this Kafka broker does not run")
        return self._process

    def _make_storage(self) -> None:
        self.port, self._controller_port = free_port(), free_port()
        directory = fresh_directory("kafka", self._below)
        self._remove = weakref.finalize(self, remove_directory, directory, os.getpid())
        self._directory = directory
        try:
            self._write_settings()
            self._format()
        except BaseException:
            self.close()
            raise

    def _write_settings(self) -> None:
        settings = broker_settings(self.directory / "data", port=self.port, controller_port=self._controller_port)
        settings |= self._properties
        if self._users:
            self._sasl_port = self._sasl_port or free_port()
            settings = with_users(settings, self._users, self._sasl_port)
        write_settings(settings, self._settings_file)

    def _format(self) -> None:
        cluster = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        command = self._java("kafka.tools.StorageTool", "format", "--standalone", f"--cluster-id={cluster}")
        try:
            done = subprocess.run(
                [*command, "-c", str(self._settings_file)],
                capture_output=True,
                text=True,
                timeout=_FORMAT_BOUND,
            )
        except subprocess.TimeoutExpired as error:
            raise StartError(f"Kafka's storage was not formatted within {_FORMAT_BOUND:g} s") from error
        if done.returncode != 0:
            raise StartError(f"Kafka's storage could not be formatted: {told(done.stderr or done.stdout)}")

    def _run_broker(self) -> None:
        process = spawn(
            self._java(*self._jvm, "kafka.Kafka", str(self._settings_file)),
            log=self.directory / "kafka.log",
            directory=self.directory,
        )
        self._process = process
        wait_until(lambda: answers(process.pid, self.port), process, "Apache Kafka", _START_BOUND)

    @property
    def _settings_file(self) -> Path:
        return self.directory / "server.properties"

    def _java(self, *arguments: str) -> list[str]:
        assert self._libs is not None, "else it is missing"
        return java_command(self._libs, *arguments)
