"""The relay's bench: its arithmetic, and that it runs on real servers."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from quiesce.bench.figures import Machine
from quiesce.bench.relay_job import Job
from quiesce.bench.relay_latency import Latency
from quiesce.bench.relay_measures import Throughput
from quiesce.bench.relay_peers import measure_peer
from quiesce.bench.relay_rates import PEERS, NotMeasured, Peer, PeerFigure, Rates, chosen, rates
from quiesce.bench.relay_run import Outcome, Plan, latency_lines
from quiesce.testing.postgres_address import PostgresAddress


def throughput(ours: tuple[float, ...], bare: tuple[float, ...]) -> Throughput:
    return Throughput("log", 500, ours, bare, 4.0, 3.0)


def test_the_medians_are_compared() -> None:
    one = throughput((80.0, 74.0, 9000.0), (100.0, 1.0, 105.0))
    assert one.ratio == 0.8
    assert one.passed
    assert "pass" in one.line()
    assert not throughput((74.0,), (100.0,)).passed


def test_one_figure_that_misses_fails_the_whole() -> None:
    kept = throughput((80.0,), (100.0,))
    good = Latency(p50=1.9, p99=4.9, events=100, busy_share=0.1, idle_share=0.001)
    assert Outcome({"log": kept}, good).passed
    assert not Outcome({"log": kept}, Latency(2.1, 4.9, 100, 0.1, 0.001)).passed
    assert not Outcome({"log": throughput((70.0,), (100.0,))}, good).passed
    assert [kept for _, _, kept in latency_lines(Latency(2.1, 5.1, 1, 0.2, 0.02))] == [False] * 4


def test_a_job_survives_its_way_to_the_process() -> None:
    job = Job("postgresql://x", "127.0.0.1:1", "t", "row", 10)
    assert Job.loads(job.dumps()) == job
    assert job.on("other").dsn == "other"


@pytest.mark.serial
@pytest.mark.parametrize("store", ["row"])
def test_a_quick_run_prints_one_object_with_every_figure(store: str) -> None:
    # A quick run's figures mean nothing on a busy machine, so neither does its status: 0 or 1.
    command = ["bench", "relay", "--quick", "--json", "--store", store, "--broker", "tansu", "--events", "2000"]
    done = subprocess.run(
        [sys.executable, "-m", "quiesce", *command], capture_output=True, text=True, timeout=55, check=False
    )
    assert done.returncode in (0, 1), done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["passed"] is (done.returncode == 0), done.stdout
    measured = told["stores"][store]
    assert measured["events_per_second"] > 0
    assert measured["ratio"] == pytest.approx(measured["events_per_second"] / measured["bare_events_per_second"], 0.01)
    assert told["latency_ms"]["events"] > 100
    assert 0 < told["latency_ms"]["p50"] <= told["latency_ms"]["p99"]
    assert "PostgreSQL" in told["machine"]["servers"]
    assert "the bare loop" in done.stderr, "progress is shown"


def test_a_bad_number_is_one_line_and_78_or_2() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "quiesce", "bench", "relay", "--page", "0"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 2
    assert "--page" in done.stderr
    assert "takes a whole number, 1 or more" in done.stderr


PEER = PEERS["debezium"]


def figure(store: str, average: float, warm: float, peer: Peer = PEER) -> PeerFigure:
    return PeerFigure(peer, "1.0", 900_000, Rates(average, warm, 1.0), ours=60_000.0, store=store, backlog=900_000)


def test_a_peer_is_measured_between_its_first_and_its_last_message() -> None:
    # 10 s of nothing, then 100 a second, then 400.
    curve = [(9.9, 0), (10.0, 100), (14.0, 500), (15.0, 900), (15.1, 900)]
    measured = rates(curve, 900)
    assert measured.average == pytest.approx(800 / 5)
    assert measured.warm_half == pytest.approx(400.0)
    assert measured.from_start == pytest.approx(60.0)


def test_a_peer_that_moved_everything_between_two_looks_is_measured_from_the_one_before() -> None:
    measured = rates([(0.0, 0), (1.0, 0), (1.5, 1000), (1.6, 1000)], 1000)
    assert measured == Rates(2000.0, 2000.0, 1000 / 1.5)


def test_what_a_peer_sent_twice_is_not_counted_as_moved() -> None:
    # It went on after its hundred: those are duplicates, and the figure is about the hundred.
    assert rates([(0.0, 0), (1.0, 50), (2.0, 100), (3.0, 170)], 100).average == pytest.approx(50.0)


def test_a_peer_is_held_to_both_of_its_promises_and_only_beside_the_log_store() -> None:
    assert figure("log", 20_000.0, 30_000.0).passed is True
    assert figure("log", 20_001.0, 30_000.0).passed is False
    assert figure("log", 20_000.0, 30_001.0).passed is False
    assert figure("row", 59_000.0, 59_000.0).passed is None
    assert figure("log", 1.0, 1.0, PEERS["seed"]).passed is None
    assert "MISSED" in figure("log", 20_001.0, 30_000.0).line()


def test_a_peer_that_misses_fails_the_whole_and_one_that_is_missing_does_not() -> None:
    kept = {"log": throughput((80.0,), (100.0,))}
    assert Outcome(kept, peers={"debezium": figure("log", 20_000.0, 30_000.0)}).passed
    assert not Outcome(kept, peers={"debezium": figure("log", 50_000.0, 50_000.0)}).passed
    assert Outcome(kept, peers={"debezium": NotMeasured(PEER, "Java is not here")}).passed


def test_peers_are_compared_with_the_log_store_if_it_was_measured() -> None:
    row, log = throughput((30.0,), (1.0,)), throughput((20.0,), (1.0,))
    assert Outcome({"row": row, "log": log}).ours == ("log", 20.0)
    assert Outcome({"row": row}).ours == ("row", 30.0)


def test_peers_stand_in_the_object() -> None:
    missing = NotMeasured(PEERS["seed"], "Go is not here")
    outcome = Outcome({}, peers={"debezium": figure("log", 20_000.0, 30_000.0), "seed": missing})
    told = outcome.as_json(Machine(2, 0.0, 0.0), Plan(), "servers")["peers"]
    assert told["seed"] == {"missing": "Go is not here"}
    assert (
        told["debezium"].items()
        >= {
            "events_per_second": 20_000.0,
            "events": 900_000,
            "settings": {},
            "version": "1.0",
            "ratio_of_ours": 3.0,
            "warm_ratio_of_ours": 2.0,
        }.items()
    )


def test_only_debezium_makes_the_server_write_a_logical_log() -> None:
    assert Plan(peers=("debezium",)).server["wal_level"] == "logical"
    assert "wal_level" not in Plan(peers=("seed", "txoutbox")).server


def test_peers_are_chosen_by_name_and_measured_in_one_order() -> None:
    assert chosen("none") == ()
    assert chosen("all") == tuple(PEERS)
    assert chosen("seed, txoutbox,seed") == ("txoutbox", "seed")


@pytest.mark.parametrize("text", ["seeds", "", "all,seed", "seed,"])
def test_a_peer_that_nobody_knows_is_one_line(text: str) -> None:
    with pytest.raises(ValueError, match=r"takes all, none or names of faststream-outbox, txoutbox, debezium, seed"):
        chosen(text)


@pytest.mark.parametrize(("name", "needs"), [("debezium", "Java is not here"), ("seed", "Go is not here")])
def test_what_a_peer_needs_and_is_not_here_is_one_line(
    name: str, needs: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert needs in not_measured(name)


def test_a_peer_outside_a_checkout_says_so(tmp_path: Path) -> None:
    assert "checkout" in not_measured("txoutbox", tmp_path)


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("import sys; print('no network\\nno packages', file=sys.stderr); sys.exit(1)", "no packages"),
        ("import sys; sys.exit(3)", "status 3"),
    ],
)
def test_the_last_word_of_the_installation_is_the_reason(script: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "install.py").write_text(script)
    assert why in not_measured("seed", tmp_path)


def not_measured(name: str, programs: Path | None = None) -> str:
    nowhere = PostgresAddress("postgresql://nobody@127.0.0.1:1/none")
    said: list[str] = []
    more = {} if programs is None else {"programs": programs}
    outcome = measure_peer(
        name, nowhere, "127.0.0.1:1", keys=1, payload=1, quick=True, ours=("log", 1.0), say=said.append, **more
    )
    assert isinstance(outcome, NotMeasured)
    assert "\n" not in outcome.line()
    return outcome.line()


def test_every_peer_has_its_program_in_the_checkout() -> None:
    programs = Path(__file__).parents[2] / "benchmarks" / "relay_peers"
    for peer in PEERS.values():
        assert (programs / peer.program).exists()
    pins = (programs / "requirements.txt").read_text().splitlines()
    assert all(re.fullmatch(r"[\w.\-]+==[\w.]+", line) for line in pins if not line.startswith("#"))


def test_an_unknown_peer_ends_the_command_with_2() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "quiesce", "bench", "relay", "--peers", "celery"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 2
    assert "takes all, none or names of" in done.stderr
