"""Tasks that the user's code left on the loop. Ended inside the part `report`, so that the report can name them."""

import asyncio
from collections.abc import Collection
from typing import Any

Task = asyncio.Task[Any]


async def end_strays(ours: Collection[Task], seconds: float) -> list[Task]:
    """Cancels every task of the loop but ours and the calling one. Returns those that did not end in time."""
    strays = asyncio.all_tasks() - set(ours) - {asyncio.current_task()}
    for task in strays:
        task.cancel("the service has stopped")
    if not strays:
        return []
    _, stuck = await asyncio.wait(strays, timeout=seconds)
    return sorted(stuck, key=Task.get_name)
