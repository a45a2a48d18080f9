"""Asking a replica whether it may get traffic, and what its consumer has."""

import asyncio
import json
import re
from dataclasses import dataclass

READY = "/health/ready"
METRICS = "/metrics"
_PARTITIONS = re.compile(rb"^consumer_partitions\{[^}]*\} (\S+)$", re.MULTILINE)
_MOST = 65_536


@dataclass(frozen=True, slots=True)
class Health:
    """What a replica answered, or that it did not: `refused` is a closed port, `silent` no answer in time."""

    ready: bool = False
    phase: str = ""
    reason: str = ""
    refused: bool = False
    silent: bool = False


async def probe(host: str, port: int, timeout: float) -> Health:
    """One readiness probe on a connection of its own, within `timeout` seconds. Raises nothing."""
    try:
        head, body = await _get(host, port, READY, timeout)
    except TimeoutError:
        return Health(silent=True, reason="no answer in time")
    except ConnectionRefusedError:
        return Health(refused=True, reason="nobody listens")
    except OSError as error:
        return Health(refused=True, reason=error.strerror or str(error))
    try:
        status = int(head.split(b" ", 2)[1])
        told = json.loads(body) if body else {}
        phase, reason = str(told.get("phase", "")), str(told.get("reason") or "")
    except (ValueError, IndexError, AttributeError):
        return Health(reason="its answer is not one of a readiness probe")
    return Health(ready=status == 200, phase=phase, reason=reason)


async def partitions(host: str, port: int, timeout: float) -> int:
    """How many partitions the consumers of a replica have; 0 where it does not say, or does not answer in time."""
    try:
        _, body = await _get(host, port, METRICS, timeout)
    except (TimeoutError, OSError):
        return 0
    return int(sum(float(found) for found in _PARTITIONS.findall(body)))


async def _get(host: str, port: int, path: str, timeout: float) -> tuple[bytes, bytes]:
    """Head and body of an answer, on a connection of its own.

    Raises:
        TimeoutError: there was none within `timeout` seconds.
        OSError: nobody listens there, or the connection was cut.
    """
    async with asyncio.timeout(timeout):
        reader, writer = await asyncio.open_connection(host, port, limit=_MOST)
        try:
            writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n".encode())
            head, _, body = (await reader.read(-1)).partition(b"\r\n\r\n")
        finally:
            writer.transport.abort()
    return head, body
