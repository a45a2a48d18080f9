"""`quiesce budget module:service`: the timeline of its shutdown, and whether it fits where it will run."""

import argparse
import json
import sys
from typing import Any

from quiesce.cli.flags import add_flag, add_repeated_flag, add_switch
from quiesce.errors import SettingsError, StartError
from quiesce.lifecycle.budget import WorkerBound
from quiesce.lifecycle.manifest import Workload, workloads
from quiesce.lifecycle.platforms import KUBERNETES, PLATFORMS
from quiesce.lifecycle.report import ExitCode
from quiesce.lifecycle.timeline import OTHERS, Finding, Timeline

INSTALL = 'pip install "quiesce[manifest]"'
UNKNOWN = (
    "what the start-up function asks for its workers (bound=, after=, keeps=, hand_back=) is not known here: each is "
    "taken to need workers {workers:g} s. Name those with terms of their own by --worker, or quiesce run may refuse "
    "what fits here"
)
"""Starting the service to ask it would open its database."""
_TERMS = ("after-http", "hand-back")


def add_to(verbs: Any) -> None:
    parser = verbs.add_parser(
        "budget",
        help="print the timeline of a service's shutdown, and refuse what does not fit",
        description="Prints when each part of the shutdown begins and must be over, and compares it with where the "
        "service will run. Starts and opens nothing: bounds that the start-up function gives to its workers are "
        "not known here, so name them by --worker.",
        epilog="Exit status: 0 it fits; 78 it does not, with what to set.",
    )
    parser.add_argument("service", metavar="MODULE:SERVICE", help="where the service stands, such as shop.main:orders")
    add_repeated_flag(
        parser,
        "--worker",
        convert=_worker,
        metavar="NAME=BOUND[:after-http][:hand-back]",
        help="a worker with a bound of its own, in seconds, and its terms",
    )
    add_flag(parser, "--platform", default=None, choices=tuple(PLATFORMS), help="compare with what this platform gives")
    add_flag(
        parser,
        "--grace-period",
        default=None,
        convert=_seconds,
        metavar="N",
        help="seconds that the platform was set to give, instead of its default",
    )
    add_flag(
        parser,
        "--manifest",
        default=None,
        metavar="FILE",
        help="compare with a Kubernetes manifest; - reads standard input",
    )
    add_switch(parser, "--json", help="print one JSON object instead")
    parser.set_defaults(run=run_budget)


def run_budget(arguments: argparse.Namespace) -> int:
    # Loads the supervisor, which the other verbs can do without.
    from quiesce.cli.run import load

    platform = None if arguments.platform is None else PLATFORMS[arguments.platform]
    if arguments.manifest is not None and platform not in (None, KUBERNETES):
        raise SettingsError(f"--manifest: says what Kubernetes does; --platform got {arguments.platform!r}")
    if arguments.grace_period is not None and (platform is None or arguments.manifest is not None):
        raise SettingsError("--grace-period: takes a --platform beside it, and no --manifest, which has its own")
    _require_once(arguments.worker)
    definition = load(arguments.service)
    timeline = Timeline.of(definition.budget, arguments.worker)
    findings = timeline.findings()
    if not arguments.worker:
        findings.append(Finding(UNKNOWN.format(workers=definition.budget.workers), refused=False))
    read: list[Workload] = []
    if arguments.manifest is not None:
        read = workloads(_documents(arguments.manifest), definition.name)
        findings += [finding for workload in read for finding in workload.findings(timeline)]
    elif platform is not None:
        findings += platform.findings(timeline, arguments.grace_period)
    refused = [finding for finding in findings if finding.refused]
    if arguments.json:
        _print_json(definition.name, timeline, findings, arguments.platform, read)
    else:
        _print_text(definition.name, timeline, findings, read)
    for finding in refused:
        print(f"quiesce: {finding}", file=sys.stderr)
    return ExitCode.BAD_CONFIGURATION if refused else ExitCode.CLEAN


def _print_text(name: str, timeline: Timeline, findings: list[Finding], read: list[Workload]) -> None:
    grace, slack = timeline.budget.grace_period, round(timeline.slack, 3)
    over = f"{-slack:g} s too much" if slack < 0 else f"{slack:g} s of slack"
    print(f"{name}: {timeline.longest:g} of {grace:g} s, {over}\n")
    print("\n".join(timeline.draw()))
    print(f"\n{timeline.sum} = {timeline.longest:g} s")
    for workload in read:
        prestop = "none" if workload.prestop is None else f"{workload.prestop:g} s"
        print(f"{workload.label}: grace period {workload.grace:g} s, preStop of {workload.container} {prestop}")
    for finding in findings:
        if not finding.refused:
            print(f"note: {finding}")
    sys.stdout.flush()


def _print_json(
    name: str, timeline: Timeline, findings: list[Finding], platform: str | None, read: list[Workload]
) -> None:
    shown = {
        "service": name,
        **timeline.as_dict(),
        "platform": platform,
        "manifest": [workload.as_dict() for workload in read],
        "fits": not any(finding.refused for finding in findings),
        "refused": [{"rule": f.rule, "message": f.message} for f in findings if f.refused],
        "notes": [f.message for f in findings if not f.refused],
    }
    print(json.dumps(shown), flush=True)


def _documents(path: str) -> list[object]:
    """The documents of a YAML file.

    Raises:
        StartError: PyYAML is not installed.
        SettingsError: the file cannot be read, or is no YAML.
    """
    try:
        import yaml
    except ImportError:
        raise StartError(f"--manifest needs PyYAML: {INSTALL}") from None
    try:
        if path == "-":
            return list(yaml.safe_load_all(sys.stdin.read()))
        with open(path, encoding="utf-8") as file:
            return list(yaml.safe_load_all(file))
    except OSError as error:
        raise SettingsError(f"--manifest: {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f", line {mark.line + 1}"
        raise SettingsError(f"--manifest: {path}{line}: is no YAML; render a template first") from error


def _worker(text: str) -> WorkerBound:
    name, equals, rest = text.partition("=")
    bound, *terms = rest.split(":")
    if not name or not equals or not set(terms) <= set(_TERMS):
        raise argparse.ArgumentTypeError(f"got {text!r}, takes NAME=BOUND, then :{' or :'.join(_TERMS)}")
    seconds = _seconds(bound)
    return WorkerBound(name, seconds, after_http="after-http" in terms, hands_back="hand-back" in terms)


def _require_once(workers: tuple[WorkerBound, ...]) -> None:
    names = [OTHERS, *(worker.name for worker in workers)]
    for name in names:
        if names.count(name) > 1:
            why = "is the budget's own, for those without a bound" if name == OTHERS else "is given twice"
            raise SettingsError(f"--worker: {name} {why}")


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not 0 <= value <= 86400:
        raise argparse.ArgumentTypeError(f"got {text!r}, takes seconds, from 0 to 86400")
    return value
