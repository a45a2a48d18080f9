"""Other relays on the same servers, each on a backlog of its own: what they move there, beside ours.

What they run lies in a checkout of this project, in `benchmarks/relay_peers`: a program for each, and a script that
installs it on first use.
"""

import contextlib
import json
import os
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from quiesce.bench.cores import Cores
from quiesce.bench.relay_rates import PEERS, NotMeasured, Peer, PeerFigure, rates
from quiesce.errors import StartError
from quiesce.testing.kafka_address import KafkaAddress
from quiesce.testing.postgres_address import PostgresAddress
from quiesce.testing.process import GuardedProcess, fresh_directory, log_tail, remove_directory, spawn, told

Say = Callable[[str], None]

_PROGRAMS = Path(__file__).parents[3] / "benchmarks" / "relay_peers"
_PARTITIONS = 6
_INSTALL_BOUND = 900.0
_PREPARE_BOUND = 240.0
_MOVE_BOUND = 150.0
"""Seconds for a start and a backlog together. What has arrived until then counts."""
_STALL_BOUND = 45.0
"""Seconds without a message, counted from the first one on."""
_END_BOUND = 20.0
_SAMPLE = 0.1
_TELL = 5.0


def measure_peer(
    name: str,
    database: PostgresAddress,
    bootstrap: str,
    *,
    keys: int,
    payload: int,
    quick: bool,
    ours: tuple[str, float],
    say: Say,
    programs: Path = _PROGRAMS,
) -> PeerFigure | NotMeasured:
    """Installs it if need be, fills its tables, and has it move them. `ours` is a store and its events a second."""
    peer = PEERS[name]
    events = peer.quick_events if quick else peer.events
    mark = f"peer_{uuid.uuid4().hex[:8]}"
    cores = Cores()
    try:
        _install(peer, programs, say)
        with _topic(bootstrap, mark), _database(database, mark) as dsn:
            job = {"broker": bootstrap, "dsn": dsn, "events": events, "keys": keys, "payload": payload, "topic": mark}
            facts = _prepare(peer, programs, job, say)
            cores = Cores()
            curve = _run(peer, programs, job, say)
    except StartError as error:
        return NotMeasured(peer, str(error))
    seen = curve[-1][1]
    store, per_second = ours
    moved = min(seen, events)
    return PeerFigure(
        peer,
        facts["version"],
        moved,
        rates(curve, moved),
        per_second,
        store,
        backlog=events,
        duplicates=max(seen - events, 0),
        settings=facts["settings"],
        cores=cores.used(),
    )


def _install(peer: Peer, programs: Path, say: Say) -> None:
    script = programs / "install.py"
    if not script.exists():
        raise StartError(f"its program is in a checkout of this project, and {programs} is not here")
    say(f"{peer.name}: looking for what it needs; the first time it is fetched")
    status, lines = _call([sys.executable, str(script), peer.name], _INSTALL_BOUND, f"{peer.name}: being fetched", say)
    if status != 0:
        raise StartError(lines[-1] if lines else f"its installation ended with status {status}")


def _prepare(peer: Peer, programs: Path, job: Mapping[str, Any], say: Say) -> dict[str, Any]:
    say(f"{peer.name}: its {job['events']:,} events are written")
    command = _command(peer, programs, "prepare", job)
    status, lines = _call(command, _PREPARE_BOUND, f"{peer.name}: being written", say)
    if status != 0:
        raise StartError(f"its tables could not be made: {told(chr(10).join(lines))}")
    return dict(json.loads(lines[-1]))


def _call(command: list[str], bound: float, what: str, say: Say) -> tuple[int, list[str]]:
    """Runs a program, with all that it starts, to its end. Returns its status and the lines that it wrote."""
    directory = fresh_directory("peer")
    try:
        log, began = directory / "call.log", time.monotonic()
        process = spawn(command, log=log, directory=directory)
        while (status := process.wait(_TELL)) is None:
            passed = time.monotonic() - began
            if passed > bound:
                process.kill()
                raise StartError(f"{what} for {bound:g} s, and not over")
            say(f"{what}, {passed:.0f} s")
        return status, [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    finally:
        remove_directory(directory, os.getpid())


def _command(peer: Peer, programs: Path, verb: str, job: Mapping[str, Any]) -> list[str]:
    # The ones that are Python packages run in an environment of their own, the others' programs in ours.
    own = programs / ".venv-peers" / "python" / "bin" / "python"
    python = str(own) if peer.name in ("faststream-outbox", "txoutbox") else sys.executable
    return [python, str(programs / peer.program), verb, json.dumps(job)]


def _run(peer: Peer, programs: Path, job: Mapping[str, Any], say: Say) -> list[tuple[float, int]]:
    """How the messages came. Raises StartError if none did."""
    directory = fresh_directory("peer")
    try:
        count = _counter(job["broker"], job["topic"])
        began = time.monotonic()
        process = spawn(_command(peer, programs, "run", job), log=directory / "peer.log", directory=directory)
        try:
            curve = _watch(peer.name, process, began, count, job["events"], say)
            died = not process.alive
        finally:
            process.end(signal.SIGTERM, _END_BOUND)
        seen = curve[-1][1]
        if seen < job["events"] and (died or not seen):
            how = "it ended by itself" if died else "its time was over"
            raise StartError(f"{how} after {seen:,} of {job['events']:,} events: {log_tail(process.log)}")
        # What came beyond its events was sent twice.
        return [*curve, (time.monotonic() - began, count())]
    finally:
        remove_directory(directory, os.getpid())


def _watch(
    name: str, process: GuardedProcess, began: float, count: Callable[[], int], events: int, say: Say
) -> list[tuple[float, int]]:
    told_at = began
    curve = [(0.0, 0)]
    came = _MOVE_BOUND
    while curve[-1][1] < events and curve[-1][0] < min(_MOVE_BOUND, came + _STALL_BOUND) and process.alive:
        time.sleep(_SAMPLE)
        seen = count()
        now = time.monotonic()
        if seen > curve[-1][1]:
            came = now - began
        curve.append((now - began, seen))
        if now - told_at >= _TELL:
            told_at = now
            say(f"{name}: {seen:,} of {events:,} events after {now - began:.0f} s")
    return curve


def _counter(bootstrap: str, topic: str) -> Callable[[], int]:
    """Counts a topic's messages by the ends of its partitions, in one request to the broker."""
    from confluent_kafka import KafkaException, TopicPartition
    from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public, but not in its __all__
        AdminClient,
        OffsetSpec,
    )

    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    asked = {TopicPartition(topic, number): latest for number in range(_PARTITIONS)}

    def count() -> int:
        try:
            answers = admin.list_offsets(asked, request_timeout=_END_BOUND)
            return sum(answer.result(_END_BOUND).offset for answer in answers.values())
        except (KafkaException, TimeoutError) as error:
            raise StartError(f"the broker does not tell the ends of {topic}: {error}") from error

    return count


@contextlib.contextmanager
def _topic(bootstrap: str, name: str) -> Iterator[None]:
    address = KafkaAddress(bootstrap)
    address.create_topic(name, _PARTITIONS)
    try:
        yield
    finally:
        with contextlib.suppress(StartError):
            address.delete_topic(name)


@contextlib.contextmanager
def _database(server: PostgresAddress, name: str) -> Iterator[str]:
    dsn = server.create_database(name)
    try:
        yield dsn
    finally:
        _drop_slots(server, name)
        server.drop_database(name)


def _drop_slots(server: PostgresAddress, name: str) -> None:
    """A replication slot would keep its database. Its owner was just ended, and the server learns it a little later."""
    until = time.monotonic() + _END_BOUND
    while True:
        try:
            server.execute(
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots "
                "WHERE database = current_database()",
                database=name,
            )
            return
        except StartError:
            if time.monotonic() > until:
                raise
            time.sleep(_SAMPLE)
