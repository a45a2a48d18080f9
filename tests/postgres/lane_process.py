"""A member as a process of its own: `lane_process.py DSN TAKEOVER_AFTER`. It writes down what it owns and loses.

SIGTERM ends it in order. SIGUSR1 blocks its loop for the seconds in BLOCK_FOR. SIGUSR2 lets it move the cursor of the
first lane it ever owned. With TEND=once its store does not call again.
"""

import asyncio
import os
import signal
import sys
import time

from quiesce.errors import QuiesceError
from quiesce.lifecycle.deadline import Deadline
from quiesce.postgres import connect
from quiesce.postgres.lanes import Lanes


def say(what: str, lanes: object = "") -> None:
    # The clock is the machine's, so the test can compare.
    print(f"{time.monotonic():.4f} {what} {lanes}", flush=True)


async def move(dsn: str, lane: int, epoch: int) -> None:
    async with connect(dsn) as connection:
        moved = "UPDATE outbox_lane SET moved_at = clock_timestamp() WHERE lane = $1 AND epoch = $2"
        say("moved", await connection.execute(moved, lane, epoch))


async def main(dsn: str, takeover_after: float) -> None:
    lanes = Lanes(
        dsn,
        f"process {os.getpid()}",
        takeover_after=takeover_after,
        on_lost=lambda lost: say("lost", len(lost)),
        busy=tuple,
    )
    ended = asyncio.Event()
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    loop.add_signal_handler(signal.SIGUSR1, lambda: time.sleep(float(os.environ["BLOCK_FOR"])))
    loop.add_signal_handler(signal.SIGUSR2, asked.set)
    once = os.environ.get("TEND") == "once"
    first: tuple[int, int] | None = None
    told: list[int] | None = None
    calls = 0
    while not ended.is_set():
        if not once or calls == 0:
            try:
                await lanes.tend()
                calls += 1
            except QuiesceError as error:
                say("failed", error)
        if sorted(lanes.held) != told:
            told = sorted(lanes.held)
            say("owns", told)
            if not asked.is_set():
                # One that is held now: what was owned at first may have been shared out since. Asked to move it, it is
                # the one of before, whatever was lost meanwhile.
                first = next(iter(lanes.held.items()), first)
        if asked.is_set() and first is not None:
            asked.clear()
            await move(dsn, *first)
        await asyncio.sleep(0.02)
    await lanes.close(Deadline(time.monotonic() + 2.0))
    say("closed")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], float(sys.argv[2])))
