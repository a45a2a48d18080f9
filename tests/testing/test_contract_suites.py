"""The published contracts: every check that is written is in its suite, once, and can be had from it by name."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

import pytest

from quiesce.testing import contracts
from quiesce.testing.contracts import asides, outbox_store, publisher, source, starts

SUITES: dict[ModuleType, Sequence[Callable[..., Any]]] = {
    outbox_store: outbox_store.CHECKS,
    publisher: publisher.CHECKS + publisher.SILENCE_CHECKS,
    source: source.CHECKS,
    asides: asides.CHECKS + asides.SILENCE_CHECKS,
    starts: starts.CHECKS,
}


def modules_of(suite: ModuleType) -> Iterator[ModuleType]:
    """The suite's own module, and those that it is put together from."""
    yield suite
    for part in iter_modules(getattr(suite, "__path__", ()), f"{suite.__name__}."):
        yield import_module(part.name)


def written_in(module: ModuleType) -> Iterator[Callable[..., Any]]:
    """Every check: a coroutine function of a world and nothing else."""
    for name, one in vars(module).items():
        own = inspect.iscoroutinefunction(one) and one.__module__ == module.__name__
        if own and not name.startswith("_") and list(inspect.signature(one).parameters) == ["world"]:
            yield one


@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.__name__.rpartition(".")[2])
def test_every_check_is_in_its_suite_once(suite: ModuleType) -> None:
    written = [check for module in modules_of(suite) for check in written_in(module)]
    assert sorted(map(_name, SUITES[suite])) == sorted(map(_name, written))
    assert all(getattr(suite, _name(check), None) is check for check in written)


def test_every_suite_is_asked_here() -> None:
    found = {import_module(one.name) for one in iter_modules(contracts.__path__, f"{contracts.__name__}.")}
    assert {one for one in found if hasattr(one, "CHECKS")} == set(SUITES)


def _name(check: Callable[..., Any]) -> str:
    return str(check.__name__)
