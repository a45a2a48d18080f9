"""Several things at once, where the failure of one ends the others."""

import asyncio
from collections.abc import Awaitable


async def side_by_side(*works: Awaitable[object]) -> None:
    """Runs them all and returns when all are over. The first failure cancels the others and is raised as it is."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
