"""What a service is before it lives: a name, a budget and the function that starts it."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from quiesce.lifecycle.budget import Budget
from quiesce.lifecycle.ports import Observer
from quiesce.supervisor.service import Service

StartFunction = Callable[[Service], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class ServiceDefinition:
    """A service that can be run, any number of times."""

    name: str
    start: StartFunction
    budget: Budget = field(default_factory=Budget)
    start_limit: float = 60.0
    """Seconds for which a resource that is not available is tried again while starting."""
    observers: Sequence[Observer] = ()
