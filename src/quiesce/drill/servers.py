"""PostgreSQL and the broker of a drill: our own, or somebody's that are given by address."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Protocol
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from quiesce.drill.side_by_side import side_by_side
from quiesce.drill.topic import find_broker
from quiesce.errors import StartError
from quiesce.kafka.blocking import in_thread
from quiesce.postgres import connect
from quiesce.testing.kafka import LocalKafka
from quiesce.testing.kafka_address import KafkaAddress
from quiesce.testing.postgres import LocalPostgres
from quiesce.testing.tansu import LocalTansu

PARTITIONS = 6
_CONNECT_BOUND = 10.0
_CLOSE_BOUND = 20.0
_CLEAN_BOUND = 5.0

Prepare = Callable[["asyncpg.Connection[Any]"], Awaitable[object]]


class LocalServer(Protocol):
    """What LocalPostgres, LocalTansu and LocalKafka have in common."""

    @property
    def version(self) -> str: ...
    def start(self) -> object: ...
    def kill(self) -> None: ...
    def close(self) -> None: ...


class Started:
    """A local server that is started and closed in threads, so that an interrupted start leaves nothing."""

    def __init__(self, server: LocalServer) -> None:
        self.server = server
        self._starting: asyncio.Task[object] | None = None

    async def start(self) -> None:
        """Raises StartError with one line that names the cause."""
        self._starting = asyncio.create_task(asyncio.to_thread(self.server.start))
        await asyncio.shield(self._starting)

    async def close(self) -> None:
        """Ends it, also where its start is still under way: that fails when its process is killed."""
        if self._starting is None:
            return
        self._starting.add_done_callback(lambda task: task.cancelled() or task.exception())
        loop = asyncio.get_running_loop()
        until = loop.time() + _CLOSE_BOUND
        # Its files are deleted only once nothing of the start can write new ones.
        while not self._starting.done() and loop.time() < until:
            await asyncio.to_thread(self.server.kill)
            await asyncio.wait({self._starting}, timeout=0.1)
        await asyncio.to_thread(self.server.close)


class Servers:
    """PostgreSQL with the tables, the broker with the topics.

    Args:
        postgres: `embedded`, or the DSN of a role that may create databases: the drill makes its own there.
        broker: `tansu`, `kafka`, or an address for `bootstrap.servers`: the drill makes its own topics there.
        topics: their names; at an address that is given they get a suffix of this drill's own.
        prepare: creates the tables.
        tell: gets a line for whatever happens.
    """

    def __init__(
        self,
        *,
        postgres: str,
        broker: str,
        topics: tuple[str, ...],
        prepare: Prepare,
        tell: Callable[[str], None],
    ) -> None:
        self._postgres = postgres
        self._broker = broker
        self._prepare = prepare
        self._tell = tell
        self._started: list[Started] = []
        self._own_database = ""
        self._own_topics: list[str] = []
        self.suffix = "" if broker in ("tansu", "kafka") else f"-{uuid.uuid4().hex[:8]}"
        self.topics = {topic: topic + self.suffix for topic in topics}
        self.dsn = ""
        self.bootstrap = ""

    async def start(self) -> None:
        """Starts both side by side, then creates tables and topics.

        Raises:
            StartError: one line that names the cause.
        """
        await side_by_side(self._start_postgres(), self._start_broker())

    async def close(self) -> None:
        """Ends what was started; on servers of somebody else deletes what was made."""
        cleaning = [self._drop_database(), self._drop_topics()]
        for outcome in await asyncio.gather(*cleaning, return_exceptions=True):
            if isinstance(outcome, Exception):
                self._tell(f"could not clean up: {str(outcome) or 'no answer in time'}")
        await asyncio.gather(*(server.close() for server in self._started))

    async def _start_postgres(self) -> None:
        if self._postgres == "embedded":
            local = LocalPostgres()
            await self._start(local, f"PostgreSQL {local.version}")
            self.dsn = local.dsn()
        else:
            await self._create_database()
        async with connect(self.dsn, name="database of the drill", timeout=_CONNECT_BOUND) as connection:
            await self._prepare(connection)
        self._tell("the tables are there")

    async def _start_broker(self) -> None:
        if self._broker == "tansu":
            tansu = LocalTansu()
            await self._start(tansu, f"the embedded broker (Tansu {tansu.version})")
            self.bootstrap = tansu.bootstrap
        elif self._broker == "kafka":
            kafka = LocalKafka()
            if reason := LocalKafka.available():
                raise StartError(reason)
            await self._start(kafka, f"Apache Kafka {kafka.version}")
            self.bootstrap = kafka.bootstrap
        else:
            self._tell(f"looking for the broker at {self._broker}")
            await in_thread("find broker", partial(find_broker, self._broker))
            self.bootstrap = self._broker
        for topic in self.topics.values():
            if self.suffix:
                self._own_topics.append(topic)
            # Not in a thread of the loop's: that one would be waited for although nobody answers.
            await in_thread("create topic", partial(KafkaAddress(self.bootstrap).create_topic, topic, PARTITIONS))
        self._tell(f"the topics are there: {', '.join(self.topics.values())}")

    async def _start(self, server: LocalServer, title: str) -> None:
        self._tell(f"starting {title}")
        started = Started(server)
        self._started.append(started)
        loop = asyncio.get_running_loop()
        began = loop.time()
        await started.start()
        self._tell(f"{title} is ready after {loop.time() - began:.1f} s")

    async def _create_database(self) -> None:
        name = f"quiesce_demo_{uuid.uuid4().hex[:8]}"
        async with connect(self._postgres, name="--postgres", timeout=_CONNECT_BOUND) as connection:
            # Before it is made: an interrupt may come just after.
            self._own_database = name
            try:
                await connection.execute(f'CREATE DATABASE "{name}"')
            except asyncpg.PostgresError as error:
                raise StartError(f"--postgres: cannot create a database there: {error}") from error
        self.dsn = urlunsplit(urlsplit(self._postgres)._replace(path=f"/{name}"))
        self._tell(f"database {name} is made")

    async def _drop_database(self) -> None:
        if self._own_database:
            async with connect(self._postgres, name="--postgres", timeout=_CONNECT_BOUND) as connection:
                await connection.execute(f'DROP DATABASE IF EXISTS "{self._own_database}" WITH (FORCE)')

    async def _drop_topics(self) -> None:
        async with asyncio.timeout(_CLEAN_BOUND):
            for topic in self._own_topics:
                await in_thread("delete topic", partial(KafkaAddress(self.bootstrap).delete_topic, topic))
