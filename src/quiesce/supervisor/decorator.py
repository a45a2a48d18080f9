"""`@service(...)`: makes a service of its start-up function."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from quiesce.lifecycle.budget import Budget
from quiesce.lifecycle.ports import Observer
from quiesce.supervisor.definition import ServiceDefinition, StartFunction
from quiesce.supervisor.entry import run


@dataclass(frozen=True, slots=True)
class RunnableService(ServiceDefinition):
    """What the decorator returns: `quiesce run module:name` finds it, and `main()` runs it."""

    def main(self) -> None:
        """Runs the service as this process: signals, exit code and all. Does not return."""
        sys.exit(run(self))


def service(
    name: str,
    *,
    budget: Budget | None = None,
    start_limit: float = 60.0,
    observers: Sequence[Observer] = (),
) -> Callable[[StartFunction], RunnableService]:
    """Makes a service of its start-up function. Stopping is that function's lines backwards.

    Args:
        name: stands in logs, metrics and the report.
        budget: seconds of the whole shutdown and of its parts; the defaults fit a grace period of 60 s.
        start_limit: seconds for which a server that does not answer is tried again at start.
        observers: are told every event; one with `routes` also answers HTTP paths, such as `/metrics`.
    """

    def decorate(start: StartFunction) -> RunnableService:
        return RunnableService(name, start, budget or Budget(), start_limit, tuple(observers))

    return decorate
