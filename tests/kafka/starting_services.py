"""Services whose servers are away when they start. Run by `test_start.py`."""

import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from quiesce import Service, service
from quiesce.kafka import KafkaPublisher
from quiesce.postgres import open_pool


async def app(scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]) -> None:
    """Never asked: the service is not ready."""


def tell_port(port: int) -> None:
    print(f"port {port}", file=sys.stderr, flush=True)


@service("starts")
async def needs_kafka(s: Service) -> None:
    tell_port(s.http(app, host="127.0.0.1", port=0))
    await s.open(KafkaPublisher(os.environ["BOOTSTRAP"]))


@service("starts")
async def needs_postgres(s: Service) -> None:
    tell_port(s.http(app, host="127.0.0.1", port=0))
    await s.open(open_pool(os.environ["DSN"]))
