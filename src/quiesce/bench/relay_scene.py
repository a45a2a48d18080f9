"""Where the parts of the relay's bench are measured: servers, a topic, a backlog that several of them share."""

import contextlib
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

from quiesce.bench.relay_job import Job
from quiesce.bench.relay_plan import Plan
from quiesce.bench.relay_tables import Tables
from quiesce.bench.servers import Servers, servers
from quiesce.errors import StartError
from quiesce.testing.kafka_address import KafkaAddress

PARTITIONS = 6
SUBJECT = "quiesce.bench.relay_subject"
BARE = "quiesce.bench.relay_bare"
PROBING = "quiesce.bench.relay_probing"

Say = Callable[[str], None]


class Scene:
    """Given to each part."""

    def __init__(self, plan: Plan, servers: Servers, topic: str, say: Say) -> None:
        self.plan = plan
        self.servers = servers
        self.topic = topic
        self.say = say
        self._began = time.monotonic()
        self._filled: dict[tuple[int, str, bool], Tables] = {}
        self._empty: list[Tables] = []

    def time_for(self, what: str, seconds: float) -> bool:
        """Whether another round of so many seconds fits into what is planned for it."""
        return time.monotonic() + seconds <= self._began + self.plan.effort.by.get(what, float("inf"))

    def job(self, store: str, dsn: str = "", **more: Any) -> Job:
        """What a measured process is asked to do. Without `events` it runs until SIGTERM."""
        told: dict[str, Any] = {"events": 0, "page": self.plan.page, "pages": self.plan.pages, **more}
        return Job(dsn, self.servers.bootstrap, self.topic, store, **told)

    def empty(self) -> str:
        """The DSN of a new database with the tables and nothing in them."""
        tables = self.tables()
        self._empty.append(tables)
        return tables.empty()

    @contextlib.contextmanager
    def another_topic(self) -> Iterator[str]:
        """A topic for what shall not be read with the rest, for as long as the block runs."""
        broker, topic = KafkaAddress(self.servers.bootstrap), f"{self.topic}-beside"
        broker.create_topic(topic, PARTITIONS)
        try:
            yield topic
        finally:
            with contextlib.suppress(StartError):
                broker.delete_topic(topic)

    def tables(self) -> Tables:
        return Tables(self.servers.database, self.topic)

    def backlog(self, events: int, store: str = "log", *, bare: bool = True) -> Tables:
        """A filled template of that size with the indexes of that store, kept for the parts that follow.

        `bare`: with the table of the bare loops.
        """
        if (events, store, bare) not in self._filled:
            plan = self.plan
            self.say(f"{events:,} events of {plan.payload} bytes over {plan.keys:,} keys are written")
            tables = self.tables()
            self._filled[events, store, bare] = tables
            tables.fill(events, plan.keys, plan.payload, bare=bare, store="row" if store == "row" else "log")
        return self._filled[events, store, bare]

    def forget(self) -> None:
        """Drops the templates, and what `empty` made. What the server does not drop is told, and left to others."""
        for drop in [*(tables.drop for tables in self._filled.values()), *(one.drop_empty for one in self._empty)]:
            try:
                drop()
            except StartError as error:
                self.say(f"a database of this bench is left behind: {error}")
        self._filled.clear()
        self._empty.clear()


@contextlib.contextmanager
def scene(plan: Plan, say: Say) -> Iterator[Scene]:
    """Starts the servers and makes the topic.

    Raises:
        StartError: a server could not be started.
    """
    topic = f"bench-{uuid.uuid4().hex[:8]}"
    say("PostgreSQL and the broker start")
    with servers(plan.broker, plan.server, plan.database) as started:
        broker = KafkaAddress(started.bootstrap)
        broker.create_topic(topic, PARTITIONS)
        made = Scene(plan, started, topic, say)
        try:
            yield made
        finally:
            # They may be servers that go on.
            made.forget()
            with contextlib.suppress(StartError):
                broker.delete_topic(topic)
