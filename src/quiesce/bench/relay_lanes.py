"""What the database tells of the relays that share its lanes."""

import asyncio
import time

from quiesce.errors import StartError
from quiesce.postgres import connect
from quiesce.postgres.lane_statements import LANES
from quiesce.postgres.pausing import pause, resume

_SHARE_BOUND = 15.0
_POLL = 0.02

# The sessions that own lanes, each with how many.
_OWNERS = """
SELECT count(*) FROM pg_locks AS held
WHERE held.locktype = 'advisory' AND held.granted AND held.objsubid = 2 AND held.objid::bigint < $1
    AND held.classid = 'outbox_lane'::regclass::oid
    AND held.database = (SELECT oid FROM pg_database WHERE datname = current_database())
GROUP BY held.pid
"""


def wait_until_shared(dsn: str, relays: int) -> None:
    """Until every lane has an owner, and each of so many relays its fair share.

    Raises:
        StartError: they have not within 15 seconds.
    """
    asyncio.run(_wait_until_shared(dsn, relays))


def paused(dsn: str) -> None:
    """Has the relays of this outbox claim nothing."""
    asyncio.run(_say(dsn, True))


def resumed(dsn: str) -> None:
    """Lets them go on, within a second."""
    asyncio.run(_say(dsn, False))


async def _wait_until_shared(dsn: str, relays: int) -> None:
    until = time.monotonic() + _SHARE_BOUND
    async with connect(dsn, name="bench") as connection:
        while True:
            owned = sorted(row[0] for row in await connection.fetch(_OWNERS, LANES))
            if sum(owned) == LANES and len(owned) == relays and owned[0] >= LANES // relays:
                return
            if time.monotonic() > until:
                raise StartError(f"{relays} relays own {owned} of {LANES} lanes after {_SHARE_BOUND:g} s")
            await asyncio.sleep(_POLL)


async def _say(dsn: str, hold: bool) -> None:
    async with connect(dsn, name="bench") as connection:
        if hold:
            await pause(connection, said_by="bench")
        else:
            await resume(connection, said_by="bench")
