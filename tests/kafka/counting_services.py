"""A consumer whose starts are counted, and whose records do what they say. Run by `test_deaths.py`."""

import asyncio
import os
import signal

from quiesce import Budget, Consumer, Service, service
from quiesce.inbox.record import Record
from quiesce.kafka import KafkaDeadLetters, KafkaSource
from quiesce.postgres import RecordStarts

BUDGET = Budget(grace_period=30, prestop=0, http=1, workers=2, producers=10, pools=5, report=1, margin=1)

GROUP = {"session.timeout.ms": 1000, "heartbeat.interval.ms": 100, "max.poll.interval.ms": 60_000}
"""Who dies is missed soon."""


async def handle(record: Record) -> None:
    value = (record.value or b"").decode()
    print(f"begins {record.partition} {value}", flush=True)
    if value == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if value == "hang":
        await asyncio.sleep(3600)
    print(f"handled {record.partition} {value}", flush=True)


@service("counted", budget=BUDGET)
async def counted(s: Service) -> None:
    kafka, topic, dead = os.environ["BOOTSTRAP"], os.environ["TOPIC"], os.environ["DEAD"]
    source = KafkaSource(kafka, topic, group=os.environ["GROUP"], revoke_bound=1.0, settings=GROUP)
    letters = KafkaDeadLetters(kafka, topic=dead)
    starts = RecordStarts(os.environ["DSN"])
    s.run(Consumer(source, handle, name="orders", dead_letters=letters, starts=starts))
