"""Debezium's connector for PostgreSQL with its outbox event router, in a standalone worker of Kafka Connect.

It reads the write-ahead log from a replication slot that was there before the events, as it does in service. Connect's
own program is run with the heap and the collector that Kafka's scripts give it.
"""

import os
import shutil
import socket
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
from job import PLACE, Job, fill, main

LIBS = PLACE / "debezium"
SLOT = "debezium"
TABLE = """
CREATE TABLE outboxevent (
    id uuid PRIMARY KEY, aggregatetype varchar(255) NOT NULL, aggregateid varchar(255) NOT NULL,
    type varchar(255) NOT NULL, payload bytea
);
CREATE PUBLICATION outbox FOR TABLE outboxevent;
"""
INSERT = "INSERT INTO outboxevent SELECT gen_random_uuid(), 'order', {key}, 'OrderPlaced', {payload} FROM {numbers}"
WORKER = {
    "key.converter": "org.apache.kafka.connect.storage.StringConverter",
    "value.converter": "io.debezium.converters.BinaryDataConverter",
    "offset.flush.interval.ms": "1000",
    "plugin.discovery": "service_load",
    "producer.enable.idempotence": "true",
    "producer.acks": "all",
    "producer.max.in.flight.requests.per.connection": "5",
    "producer.linger.ms": "20",
    "producer.batch.size": "262144",
}
CONNECTOR = {
    "name": "outbox",
    "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
    "tasks.max": "1",
    "topic.prefix": "bench",
    "plugin.name": "pgoutput",
    "slot.name": SLOT,
    "publication.name": "outbox",
    "publication.autocreate.mode": "disabled",
    "table.include.list": "public.outboxevent",
    "snapshot.mode": "no_data",
    "tombstones.on.delete": "false",
    "extended.headers.enabled": "false",
    "max.batch.size": "8192",
    "max.queue.size": "32768",
    "poll.interval.ms": "10",
    "transforms": "outbox",
    "transforms.outbox.type": "io.debezium.transforms.outbox.EventRouter",
}
JVM = ("-Xms256m", "-Xmx2g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35")
TOLD = ("max.batch.size", "max.queue.size", "poll.interval.ms", "extended.headers.enabled")


async def prepare(job: Job) -> tuple[str, dict[str, object]]:
    connection = await asyncpg.connect(job.dsn)
    await connection.execute(TABLE)
    await connection.execute(f"SELECT pg_create_logical_replication_slot('{SLOT}', 'pgoutput')")
    await connection.close()
    await fill(job, INSERT)
    producer = {name: value for name, value in WORKER.items() if name.startswith("producer.")}
    return f"{jar_version('debezium-connector-postgres')}, Kafka Connect {jar_version('connect-runtime')}", {
        **{name: CONNECTOR[name] for name in TOLD},
        **producer,
    }


def jar_version(name: str) -> str:
    return next(LIBS.glob(f"{name}-*.jar")).stem.removeprefix(f"{name}-")


async def run(job: Job) -> None:
    server = urlsplit(job.dsn)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    here = Path.cwd()
    worker = {
        **WORKER,
        "bootstrap.servers": job.broker,
        "listeners": f"http://127.0.0.1:{port}",
        "offset.storage.file.filename": str(here / "offsets"),
    }
    connector = {
        **CONNECTOR,
        "database.hostname": server.hostname or "127.0.0.1",
        "database.port": str(server.port or 5432),
        "database.user": server.username or "postgres",
        "database.password": server.password or "",
        "database.dbname": server.path.lstrip("/"),
        "transforms.outbox.route.topic.replacement": job.topic,
    }
    for name, values in (("worker", worker), ("connector", connector)):
        text = "".join(f"{key}={value}\n" for key, value in values.items())
        (here / f"{name}.properties").write_text(text)
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java") or "java"
    command = [java, *JVM, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", f"{LIBS}/*"]
    command += ["org.apache.kafka.connect.cli.ConnectStandalone", "worker.properties", "connector.properties"]
    # This process becomes Java, so that a signal reaches it.
    os.execv(java, command)  # noqa: S606


if __name__ == "__main__":
    main(prepare, run)
