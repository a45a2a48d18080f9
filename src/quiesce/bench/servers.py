"""PostgreSQL and a broker for a bench, started for it or given by address."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from quiesce.bench.cores import Cores
from quiesce.errors import StartError
from quiesce.testing.kafka import LocalKafka
from quiesce.testing.postgres import LocalPostgres
from quiesce.testing.postgres_address import PostgresAddress
from quiesce.testing.tansu import LocalTansu

DATABASE = {"shared_buffers": "512MB", "max_wal_size": "8GB", "autovacuum_naptime": "10s"}
"""A million events fit into memory, as they would on a server of their own."""

MOST_PAYLOAD = 900_000
"""Bytes. A broker, and a producer, take a message of a megabyte with its key and headers, as they come."""


@dataclass(frozen=True, slots=True)
class Servers:
    """`database` may create databases; `bootstrap` is for `bootstrap.servers`; `pids` are those of servers of ours."""

    database: PostgresAddress
    bootstrap: str
    pids: Mapping[str, int]

    def cores(self, **more: int) -> Cores:
        """Counts who uses the cores from now on: these servers, this process, and what is named."""
        return Cores(**more, **self.pids)


@contextlib.contextmanager
def servers(broker: str, settings: Mapping[str, str], database: str = "") -> Iterator[Servers]:
    """Both, for as long as the block runs.

    Args:
        broker: `kafka`, `tansu`, or an address.
        settings: of a PostgreSQL that is started here.
        database: a DSN of a server that is there, whose user may create databases; empty to start one.

    Raises:
        StartError: one of them cannot be started. The message says what is missing.
    """
    pids = {}
    with contextlib.ExitStack() as stack:
        if database:
            address = PostgresAddress(database)
        else:
            started = stack.enter_context(LocalPostgres(settings={**DATABASE, **settings}))
            address, pids["postgres"] = started.address, started.pid
        bootstrap = broker
        if broker in ("kafka", "tansu"):
            server = LocalKafka() if broker == "kafka" else LocalTansu()
            if reason := server.available():
                raise StartError(f"{reason}; or give another broker: --broker tansu, --broker ADDRESS")
            stack.enter_context(server)
            bootstrap = server.bootstrap
            pids["broker"] = server.pid
        yield Servers(address, bootstrap, pids)


def described(broker: str, settings: Mapping[str, str], database: str = "") -> str:
    """Which servers are measured with, in one line.

    Raises:
        StartError: the database that was given does not answer.
    """
    told = {"kafka": "Apache Kafka", "tansu": "Tansu"}.get(broker, broker)
    if broker == "kafka" and LocalKafka.available() is None:
        told += f" {LocalKafka().version}"
    if database:
        return f"PostgreSQL {PostgresAddress(database).server_version()} (given), {told}"
    level = f" (wal_level={settings['wal_level']})" if "wal_level" in settings else ""
    return f"PostgreSQL {LocalPostgres().version}{level}, {told}"
