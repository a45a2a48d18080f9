"""`quiesce`: finds the verb, runs it, turns what went wrong into one line and a status."""

import argparse
import importlib.metadata
import sys
from collections.abc import Sequence

from quiesce.cli import demo, outbox, run
from quiesce.errors import QuiesceError, SettingsError
from quiesce.lifecycle.report import ExitCode

VERBS = (run, demo, outbox)


def parser() -> argparse.ArgumentParser:
    """The whole command line. Documentation and its tests read it from here."""
    top = argparse.ArgumentParser(
        prog="quiesce",
        description="Run Python services that can be stopped, rolled and killed without losing or doubling work.",
        epilog="Every flag has a twin in the environment, shown in brackets. Start with: quiesce demo",
    )
    top.add_argument("--version", action="version", version=f"quiesce {importlib.metadata.version('quiesce')}")
    verbs = top.add_subparsers(title="verbs", required=True, metavar="VERB")
    for verb in VERBS:
        verb.add_to(verbs)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit status."""
    try:
        arguments = parser().parse_args(argv)
        status: int = arguments.run(arguments)
    except SettingsError as error:
        return _fail(error, ExitCode.BAD_CONFIGURATION)
    except QuiesceError as error:
        return _fail(error, ExitCode.FAILED)
    except BrokenPipeError:
        # The reader has gone, as `| head` does; what was asked for was done.
        sys.stderr.close()
        return ExitCode.CLEAN
    return status


def _fail(error: QuiesceError, status: ExitCode) -> int:
    print(f"quiesce: {error}", file=sys.stderr)
    return status
