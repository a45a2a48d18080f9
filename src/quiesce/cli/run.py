"""`quiesce run module:service`."""

import argparse
import importlib
import logging
import os
import sys
from functools import partial
from typing import Any

from quiesce.cli.flags import add_flag
from quiesce.cli.logs import FORMATS, LEVELS, configure
from quiesce.errors import SettingsError
from quiesce.lifecycle.budget import Budget
from quiesce.lifecycle.plan import Plan
from quiesce.lifecycle.report import ExitCode
from quiesce.supervisor import termination
from quiesce.supervisor.definition import ServiceDefinition
from quiesce.supervisor.entry import run
from quiesce.supervisor.hard_deadline import HardDeadline
from quiesce.supervisor.signals import SignalLadder

log = logging.getLogger("quiesce.supervisor")

EXAMPLE = "quiesce.examples.order_service.main:orders"


def add_to(verbs: Any) -> None:
    parser = verbs.add_parser(
        "run",
        help="run a service in this process",
        description="Runs a service in this process. SIGTERM or SIGINT drains it, a second one gives up the work in "
        "hand, a third one leaves at once.",
        epilog="Exit status: 0 clean; 1 the service failed; 70 the hard deadline ended it, or a task would "
        f"not end; 75 closed in order, but work was abandoned; 78 bad settings. Example: quiesce run {EXAMPLE}",
    )
    parser.add_argument("service", metavar="MODULE:SERVICE", help="where the service stands, such as shop.main:orders")
    add_flag(parser, "--log-format", default="text", choices=FORMATS, help="how log lines look")
    add_flag(parser, "--log-level", default="info", choices=LEVELS, help="the least level that is written")
    parser.set_defaults(run=run_service)


def run_service(arguments: argparse.Namespace) -> int:
    # The signals were taken as the first act of the process; here only where this is called by itself.
    ladder: SignalLadder | None = getattr(arguments, "ladder", None)
    if ladder is None:
        ladder = SignalLadder()
        ladder.install()
    configure(arguments.log_format, arguments.log_level)
    # Until the service's own budget is known: its import may be what hangs.
    late = HardDeadline(partial(_import_hangs, arguments.service))
    ladder.arm_with(lambda at: late.arm(Plan.at(Budget(), at).end))
    try:
        definition = load(arguments.service)
    except SettingsError as error:
        termination.write(f"{arguments.service}: exit code {ExitCode.BAD_CONFIGURATION}, {error}\n")
        raise
    return run(definition, ladder)


def _import_hangs(target: str) -> None:
    """On the thread of the hard deadline: nothing is there that could report."""
    told = f"{target}: exit code {ExitCode.HARD_DEADLINE}, a stop was requested and its import did not end"
    termination.write(f"{told}\n")
    log.error("%s", told)


def load(target: str) -> ServiceDefinition:
    """The service behind `module:name`.

    Raises:
        SettingsError: there is no such module or name, or it is not a service.
    """
    module_name, colon, name = target.partition(":")
    if not colon or not module_name or not name:
        raise SettingsError(f"service: got {target!r}, takes MODULE:SERVICE, such as {EXAMPLE}")
    if module_name.startswith(".") or "/" in module_name or module_name.endswith(".py"):
        raise SettingsError(
            f"service: got {target!r}, takes the module's name and no path: shop.main:orders for shop/main.py"
        )
    # As `python -m` does: the service usually stands in the directory one starts from.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(error.name + ".")):
            raise SettingsError(f"service: no module {error.name!r}, looked for from {os.getcwd()}") from error
        raise SettingsError(f"service: {module_name} needs {error.name!r}, which is not installed") from error
    found = getattr(module, name, None)
    if not isinstance(found, ServiceDefinition):
        names = [key for key, value in vars(module).items() if isinstance(value, ServiceDefinition)]
        hint = f"it has {', '.join(names)}" if names else "it has no function decorated with @service(...)"
        raise SettingsError(f"service: {module_name} has no service {name!r}; {hint}")
    return found
