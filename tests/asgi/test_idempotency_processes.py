"""Idempotency keys of services that are stopped in the middle of a request, or killed."""

import asyncio
import signal
import urllib.error
import urllib.request
from http.client import HTTPException
from pathlib import Path

import pytest
from key_scene import pool

from quiesce.testing.loopback import free_port
from quiesce.testing.service_process import ServiceProcess

pytestmark = pytest.mark.needs("postgres")

COUNTS = "SELECT (SELECT count(*) FROM effect), (SELECT count(*) FROM idempotency_key)"


def start(dsn: str, hold: str, **environment: str) -> ServiceProcess:
    settings = {
        "PYTHONPATH": str(Path(__file__).parent),
        "DATABASE_URL": dsn,
        "PORT": str(free_port()),
        "HOLD": hold,
        **environment,
    }
    process = ServiceProcess("key_services:shop", environment=settings, name=hold).start()
    process.wait_for("readiness: ready", 40)
    return process


def post(process: ServiceProcess, key: str) -> tuple[int, bytes]:
    """Status and body. Status 0: the connection was cut."""
    url = f"http://127.0.0.1:{process.environment['PORT']}/orders"
    try:
        with urllib.request.urlopen(urllib.request.Request(url, b"", {"Idempotency-Key": key}), timeout=40) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
    except (OSError, HTTPException):
        return 0, b""


async def test_K40_an_abort_by_the_shutdown_and_a_sigkill_leave_the_key_to_the_next_attempt(database: str) -> None:
    processes: list[ServiceProcess] = []

    async def started(hold: str, **environment: str) -> ServiceProcess:
        processes.append(process := await asyncio.to_thread(start, database, hold, **environment))
        return process

    async def torn(process: ServiceProcess, key: str) -> None:
        # Its handler takes longer than the second that requests have in the drain.
        request = asyncio.create_task(asyncio.to_thread(post, process, key))
        await asyncio.to_thread(process.wait_for, "written, not committed", 40)
        process.signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 30) == 75, "a request was left unfinished, and that is told"
        assert (await request)[0] != 201

    async with pool(database) as db:
        try:
            held, leased, killed = await asyncio.gather(
                started("transaction", SLEEP="600"),
                started("lease", SLEEP="600"),
                started("lease", QUIESCE_CRASH="idempotency.before_commit:1:SIGKILL"),
            )
            await asyncio.gather(torn(held, "one"), torn(leased, "two"))
            counted = await db.fetchrow(COUNTS)
            assert tuple(counted or ()) == (0, 0)
            assert (await asyncio.to_thread(post, killed, "three"))[0] == 0
            assert await asyncio.to_thread(killed.wait, 30) == 128 + signal.SIGKILL

            last = await started("lease")
            # A lease runs out, and who takes the key then knows that it is not the first.
            for key, body in (("one", b'{"attempt":1}'), ("two", b'{"attempt":1}'), ("three", b'{"attempt":2}')):
                assert await asyncio.to_thread(post, last, key) == (201, body)
                assert await asyncio.to_thread(post, last, key) == (201, body)
            assert await db.fetchval("SELECT count(*) FROM effect") == 3
        finally:
            for process in processes:
                await asyncio.to_thread(process.discard)
