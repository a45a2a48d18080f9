"""One life of a service on a loop that belongs to somebody else, who may cancel it, and more than once."""

import asyncio

from quiesce.supervisor.runner import Runner

UNWIND = 0.5
"""Seconds for what the service's code has left running, where the loop ends with the service."""

_standing: set[asyncio.Task[None]] = set()
"""A task that nobody refers to may be collected in the middle of what it does."""


class HostedLife:
    """Begins the service, and sees to it that it ends in order even where its loop is torn down around it.

    The end of a loop cancels all tasks at once, workers, pools and closers alike. So none of the service's own is among
    those, but one that stands for them all: when it is cancelled the service is asked to stop, and the loop waits.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        runner.begin()
        self.stand_in = asyncio.create_task(self._stand(), name=f"service {runner.definition.name}")
        _standing.add(self.stand_in)
        self.stand_in.add_done_callback(_standing.discard)

    async def over(self, cancels: int) -> None:
        """Waits until the service has stopped, whatever happens to the caller meanwhile. Bounded by the budget.

        Args:
            cancels: how often the host was cancelled already. The second one aborts.

        Raises:
            asyncio.CancelledError: the caller was cancelled meanwhile; at the end, and not before.
        """
        cancelled: asyncio.CancelledError | None = None
        while not (self._runner.stopped.done() and self.stand_in.done()):
            try:
                await asyncio.wait((self._runner.stopped, self.stand_in))
            except asyncio.CancelledError as error:
                cancelled = cancelled or error
                cancels += 1
                if cancels > 1:
                    self._runner.abort("cancelled again by its host")
        if cancelled is not None:
            raise cancelled

    async def _stand(self) -> None:
        cancels = 0
        while not self._runner.stopped.done():
            try:
                await asyncio.wait((self._runner.stopped,))
            except asyncio.CancelledError:
                cancels += 1
                if cancels == 1:
                    self._runner.stop("its loop ends")
                else:
                    self._runner.abort("its loop ends, and that was asked for again")
        left = [task for task in self._runner.tasks.left if not task.done()]
        if cancels and left:
            # The loop has looked for tasks to cancel once, and these were the service's then.
            for task in left:
                task.cancel("the loop ends")
            await asyncio.wait(left, timeout=UNWIND)
