"""Who is compared: how each is started, by its documentation, and which setting bounds its shutdown."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

SERVICES = Path(__file__).with_name("services")
LIMIT = 4
"""Seconds that each gives its shutdown in the second table: what fits into the 10 s of `docker stop`."""


@dataclass(frozen=True)
class Peer:
    """`command(bin, port, limit)` is what is run; `bin` is the folder of the peers' programs."""

    name: str
    package: str
    unit: str
    command: Callable[[Path, int, bool], list[str]]
    setting: str
    http: bool = False
    needs: str | None = None


def _script(name: str) -> Callable[[Path, int, bool], list[str]]:
    return lambda programs, port, limit: [str(programs / "python"), str(SERVICES / f"{name}.py")]


def _uvicorn(programs: Path, port: int, limit: bool) -> list[str]:
    bound = ["--timeout-graceful-shutdown", str(LIMIT)] if limit else []
    return [str(programs / "uvicorn"), "with_uvicorn:app", "--port", str(port), *bound]


def _hypercorn(programs: Path, port: int, limit: bool) -> list[str]:
    bound = ["--graceful-timeout", str(LIMIT)] if limit else []
    return [str(programs / "hypercorn"), "with_uvicorn:app", "--bind", f"127.0.0.1:{port}", *bound]


def _faststream(programs: Path, port: int, limit: bool) -> list[str]:
    return [str(programs / "faststream"), "run", "with_faststream:app"]


def _celery(programs: Path, port: int, limit: bool) -> list[str]:
    # By itself SIGTERM waits for tasks without a bound; a bounded shutdown is what SIGQUIT asks for.
    remap = ["env", "REMAP_SIGTERM=SIGQUIT"] if limit else []
    return [*remap, str(programs / "celery"), "-A", "with_celery", "worker", "--concurrency", "1"]


def _quiesce(name: str) -> Callable[[Path, int, bool], list[str]]:
    # Not out of the peers' environment: what is compared is this tree.
    return lambda programs, port, limit: [sys.executable, "-m", "quiesce", "run", f"with_quiesce:{name}"]


BUDGET = f"Budget(grace_period=10, prestop=0, http={LIMIT}, workers={LIMIT}, producers=1)"

PEERS = (
    Peer("quiesce, worker", "quiesce", "an iteration", _quiesce("worker"), BUDGET),
    Peer("quiesce, HTTP", "quiesce", "a request", _quiesce("request"), BUDGET, http=True),
    Peer(
        "uvicorn, embedded",
        "uvicorn",
        "a request",
        _script("with_uvicorn_embedded"),
        f"timeout_graceful_shutdown={LIMIT}",
        http=True,
    ),
    Peer("uvicorn, CLI", "uvicorn", "a request", _uvicorn, f"--timeout-graceful-shutdown {LIMIT}", http=True),
    Peer("hypercorn, CLI", "hypercorn", "a request", _hypercorn, f"--graceful-timeout {LIMIT}", http=True),
    Peer("aiohttp, run_app", "aiohttp", "a request", _script("with_aiohttp"), f"shutdown_timeout={LIMIT}", http=True),
    Peer("aiomisc", "aiomisc", "a round of a service", _script("with_aiomisc"), f"shutdown_timeout={LIMIT}"),
    Peer("FastStream", "faststream", "a message", _faststream, f"KafkaBroker(graceful_timeout={LIMIT})", needs="kafka"),
    Peer(
        "procrastinate",
        "procrastinate",
        "an async job",
        _script("with_procrastinate"),
        f"shutdown_graceful_timeout={LIMIT}",
        needs="postgres",
    ),
    Peer(
        "Celery",
        "celery",
        "a task in a pool of one process",
        _celery,
        f"REMAP_SIGTERM=SIGQUIT, worker_soft_shutdown_timeout={LIMIT}",
    ),
)

PACKAGES = (
    "uvicorn",
    "starlette",
    "hypercorn",
    "aiohttp",
    "aiomisc",
    "faststream[cli,confluent]",
    "procrastinate",
    "psycopg[binary]",
    "celery",
)
