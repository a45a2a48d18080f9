"""One database, one pair of topics, and order services on them: what the end-to-end tests share."""

import asyncio
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg

from quiesce.drill.audit import Findings, OutboxRow, audit
from quiesce.drill.topic import read_topic
from quiesce.postgres.waiting import EVERY_EVENT
from quiesce.testing.service_process import ServiceProcess

HERE = Path(__file__).parent


@dataclass
class Scene:
    """Where the services of one test live."""

    dsn: str
    bootstrap: str
    order_topic: str
    product_topic: str
    group: str
    store: str = "log"
    processes: list[ServiceProcess] = field(default_factory=list)

    def start(self, **environment: str) -> ServiceProcess:
        """Starts one more replica on a port of its own."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        settings = {
            "PYTHONPATH": str(HERE),
            "DATABASE_URL": self.dsn,
            "OUTBOX_STORE": self.store,
            "KAFKA_BOOTSTRAP": self.bootstrap,
            "HOST": "127.0.0.1",
            "PORT": str(port),
            "ORDER_TOPIC": self.order_topic,
            "PRODUCT_TOPIC": self.product_topic,
            "CONSUMER_GROUP": self.group,
            "SESSION_TIMEOUT_MS": "6000",
            "HEARTBEAT_INTERVAL_MS": "500",
        }
        process = ServiceProcess(
            "armed_orders:orders", environment={**settings, **environment}, name=f"replica {len(self.processes) + 1}"
        ).start()
        self.processes.append(process)
        return process

    def close(self) -> None:
        for process in self.processes:
            process.discard()

    def enqueue(self, count: int, keys: int, first: int = 0) -> None:
        """Commits events by plain SQL, as a writer in any language would: several keys, each in its order."""
        self.execute(
            "INSERT INTO outbox_event (id, topic, aggregate_id, type, payload) "
            "SELECT gen_random_uuid(), $1, 'key-' || n % $2, 'Counted', convert_to(n::text, 'UTF8') "
            "FROM generate_series($3::int, $4::int) AS n ORDER BY n",
            self.order_topic,
            keys,
            first,
            first + count - 1,
        )

    def execute(self, sql: str, *values: Any) -> list[Any]:
        async def run() -> list[Any]:
            connection = await asyncpg.connect(self.dsn, timeout=10)
            try:
                return list(await connection.fetch(sql, *values))
            finally:
                await connection.close(timeout=5)

        return asyncio.run(run())

    def rows(self) -> list[OutboxRow]:
        found = self.execute(f"SELECT id, position, aggregate_id, type, dispatched FROM ({self._every_event()}) AS e")
        return [OutboxRow(str(r["id"]), r["position"], r["aggregate_id"], r["type"], r["dispatched"]) for r in found]

    def waiting(self) -> int:
        """How many events are not marked as dispatched."""
        return int(self.execute(f"SELECT count(*) FROM ({self._every_event()}) AS e WHERE NOT dispatched")[0][0])

    def _every_event(self) -> str:
        ((kind,),) = self.execute("SELECT store FROM outbox_control")
        return EVERY_EVENT["log" if kind is None else kind]

    def wait_until_dispatched(self, within: float = 20.0) -> None:
        until = time.monotonic() + within
        while (waiting := self.waiting()) and time.monotonic() < until:
            time.sleep(0.05)
        assert waiting == 0, f"{waiting} events still wait after {within:g} s"

    def audit(self, accepted: Sequence[str] = ()) -> Findings:
        """What the tables and the topic say. Events are compared by id; orders only where some were accepted."""
        rows = self.rows()
        orders = [str(row["id"]) for row in self.execute("SELECT id FROM orders")] if accepted else []
        marked = [row.event_id for row in rows if row.dispatched]
        return audit(accepted, orders, rows, read_topic(self.bootstrap, self.order_topic, marked, quiet=0.5))
