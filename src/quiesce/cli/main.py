"""`quiesce`: finds the verb, runs it, turns what went wrong into one line and a status.

Imports little, and the verbs only once the signals of `quiesce run` are taken: loading them takes a while.
"""

import argparse
import sys
from collections.abc import Sequence

from quiesce.errors import QuiesceError, SettingsError
from quiesce.supervisor.signals import SignalLadder


def parser() -> argparse.ArgumentParser:
    """The whole command line. Documentation and its tests read it from here."""
    import importlib.metadata

    from quiesce.cli import bench, budget, consumer, demo, inbox, outbox, run

    top = argparse.ArgumentParser(
        prog="quiesce",
        description="Run Python services that can be stopped, rolled and killed without losing or doubling work.",
        epilog="Every flag has a twin in the environment, shown in brackets. Start with: quiesce demo",
    )
    top.add_argument("--version", action="version", version=f"quiesce {importlib.metadata.version('quiesce')}")
    verbs = top.add_subparsers(title="verbs", required=True, metavar="VERB")
    for verb in (run, budget, demo, outbox, inbox, consumer, bench):
        verb.add_to(verbs)
    return top


EXTRAS = {"asyncpg": "postgres", "confluent_kafka": "kafka", "uvicorn": "http", "prometheus_client": "metrics"}
"""Which extra brings what a verb may need."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit status."""
    argv = sys.argv[1:] if argv is None else argv
    given = argparse.Namespace()
    if list(argv[:1]) == ["run"]:
        # First of all: an early SIGTERM must find us, however long the imports below take.
        given.ladder = SignalLadder()
        given.ladder.install()
    from quiesce.cli.flags import read_environment
    from quiesce.lifecycle.report import ExitCode

    try:
        arguments = parser().parse_args(argv, given)
        read_environment(arguments)
        status: int = arguments.run(arguments)
    except SettingsError as error:
        return _fail(error, ExitCode.BAD_CONFIGURATION)
    except QuiesceError as error:
        return _fail(error, ExitCode.FAILED)
    except ModuleNotFoundError as error:
        if error.name not in EXTRAS:
            raise
        print(
            f"quiesce: needs {error.name}, which is not installed: pip install 'quiesce[{EXTRAS[error.name]}]'",
            file=sys.stderr,
        )
        return ExitCode.FAILED
    except BrokenPipeError:
        # The reader has gone, as `| head` does; what was asked for was done.
        sys.stderr.close()
        return ExitCode.CLEAN
    return status


def _fail(error: QuiesceError, status: int) -> int:
    print(f"quiesce: {error}", file=sys.stderr)
    return status
