"""The loop that the consumer is compared with: what anybody would write first, and as fast as that goes, with the
client's own settings or with the one of ours that keeps fetching from standing still.

It knows no order by key, no stop, no rebalance and no retry; offsets are committed by the client's own timer, whatever
became of the records. Run as `python -m quiesce.bench.consumer_bare`, with a `Job` on standard input.
"""

import sys
import time

from confluent_kafka import Consumer

from quiesce.bench.consumer_job import Job
from quiesce.bench.relay_bare import mark

BOUND = 60.0
"""Seconds without a record after which the measurement has failed."""


def main() -> int:
    job = Job.loads(sys.stdin.read())
    settings: dict[str, str | int] = {
        "bootstrap.servers": job.broker,
        "group.id": job.group,
        "auto.offset.reset": "earliest",
        "log_level": 3,
    }
    if job.fetch_again:
        settings["fetch.queue.backoff.ms"] = job.fetch_again
    consumer = Consumer(settings)
    consumer.subscribe([job.topic])
    mark("up")
    handled = size = 0
    until = time.monotonic() + BOUND
    while handled < job.records:
        messages = consumer.consume(job.page, 0.1)
        before = handled
        for message in messages:
            if message.error() is not None:
                raise RuntimeError(f"the broker sent no record: {message.error()}")
            value = message.value()
            size += 0 if value is None else len(value)
            handled += 1
        if handled > before:
            until = time.monotonic() + BOUND
            if not before:
                mark("first", records=handled)
        elif time.monotonic() > until:
            raise RuntimeError(f"no record for {BOUND:g} s")
    mark("handled", records=handled, bytes=size)
    consumer.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
