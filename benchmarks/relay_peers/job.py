"""What every peer's program shares: the job it was given, and filling its table.

Each program is called as `python with_PEER.py prepare JOB` and then `python with_PEER.py run JOB`. The first makes and
fills the tables and prints one line of JSON: the version and the settings. The second moves the events until SIGTERM.
"""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import asyncpg

HERE = Path(__file__).parent
PLACE = HERE / ".venv-peers"
"""Where `install.py` puts everything."""
STEP = 10_000


@dataclass(frozen=True)
class Job:
    """`keys`: how many the events have. `payload`: bytes of each."""

    dsn: str
    broker: str
    topic: str
    events: int
    keys: int
    payload: int


async def fill(job: Job, insert: str) -> None:
    """Fills the table by `insert`, which takes the events' numbers from `{numbers}`, a transaction for each step.

    `{key}`, `{payload}` and `{topic}` stand for the SQL of these. Then the table is as it would be after a while: with
    statistics, without hint bits to set.
    """
    connection = await asyncpg.connect(job.dsn)
    for first in range(0, job.events, STEP):
        last = min(first + STEP, job.events) - 1
        await connection.execute(
            insert.format(
                numbers=f"generate_series({first}, {last}) AS n",
                key=f"'key-' || (n % {job.keys})",
                payload=f"convert_to(repeat('x', {job.payload}), 'UTF8')",
                topic=f"'{job.topic}'",
            )
        )
    await connection.execute("VACUUM (ANALYZE, FREEZE)")
    await connection.execute("CHECKPOINT")
    await connection.close()


def main(
    prepare: Callable[[Job], Awaitable[tuple[str, Mapping[str, object]]]], run: Callable[[Job], Awaitable[None]]
) -> None:
    """Does what the command line asks for. `prepare` returns the version and the settings."""
    _, verb, text = sys.argv
    job = Job(**json.loads(text))
    if verb == "prepare":
        version, settings = asyncio.run(prepare(job))
        print(json.dumps({"version": version, "settings": settings}))
    else:
        asyncio.run(run(job))
