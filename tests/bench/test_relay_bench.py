"""`quiesce bench relay` on real servers: each part in its smallest form, and what the flags refuse."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from quiesce.bench.processes import Measured
from quiesce.bench.relay_job import Job
from quiesce.bench.relay_scene import BARE, SUBJECT
from quiesce.bench.relay_tables import Tables
from quiesce.cli.main import main
from quiesce.testing.postgres_address import PostgresAddress

Bench = Callable[..., dict[str, Any]]


@pytest.fixture
def bench(postgres: PostgresAddress, kafka: str, tmp_path: Path) -> Bench:
    """Runs a part of the bench in its smallest form on the servers of all tests; gives the object it printed.

    Such figures say nothing of speed, so neither does the status: 0 or 1.
    """

    def run(part: str, *more: str) -> dict[str, Any]:
        written = tmp_path / "figures.json"
        servers = ["--broker", kafka, "--postgres", postgres.admin_dsn]
        command = ["bench", "relay", "--quick", "--json", *servers, "--write", str(written), "--only", part, *more]
        done = subprocess.run(
            [sys.executable, "-m", "quiesce", *command], capture_output=True, text=True, timeout=55, check=False
        )
        assert done.returncode in (0, 1), done.stderr
        assert done.stdout, done.stderr
        told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        assert told.pop("passed") is (done.returncode == 0), done.stdout
        assert "failed" not in told, done.stdout
        assert ("NOT KEPT" in done.stdout) is (done.returncode == 1)
        assert "PostgreSQL" in told["machine"]["servers"]
        assert "cores shared by all" in done.stdout
        assert part.partition(",")[0] in done.stderr, "progress is shown"
        on_disk = json.loads(written.read_text())
        assert all(on_disk[place] == told[place] for place in on_disk), "the file has what was printed"
        return told

    return run


@pytest.mark.serial
def test_throughput_of_both_stores(bench: Bench) -> None:
    told = bench("throughput", "--events", "6000")
    for store in ("log", "row"):
        measured = told["stores"][store]
        assert measured["events_per_second"] > 0
        assert measured["bare_events_per_second"] > 0
        ratio = measured["events_per_second"] / measured["bare_events_per_second"]
        assert measured["ratio"] == pytest.approx(ratio, 0.01)
        assert measured["figures"]["ratio"]["target"] == {"log": 0.75, "row": 1.0}[store]
        assert measured["cpu_us_per_event"] > 0
        assert measured["cores"]["relay"] >= 0
        assert measured["load"]["loaded_by_others"] in (True, False)
    assert told["latency_ms"] is None


@pytest.mark.serial
def test_throughput_against_the_size_of_a_page(bench: Bench) -> None:
    points = bench("pages", "--store", "log", "--events", "4000")["sweep"]["pages"]["log"]["points"]
    assert [point["page"] for point in points] == [100, 1000]
    rates = [point[of] for point in points for of in ("events_per_second", "bare_events_per_second")]
    assert min(rates) > 0
    assert len(set(rates)) > 2, "each was measured"


@pytest.mark.serial
def test_two_relays_keep_every_key_in_order(bench: Bench) -> None:
    pair = bench("pair", "--events", "12000")["pair"]
    assert pair["checked_events"] >= 8_000
    assert pair["figures"]["disordered"]["value"] == 0
    assert pair["figures"]["doubled"]["value"] == 0
    assert pair["one_events_per_second"] > 0
    assert pair["two_events_per_second"] > 0
    assert all(sum(moved) >= 4_000 for moved in pair["moved_by"])


@pytest.mark.serial
def test_a_relay_that_goes_is_replaced(bench: Bench) -> None:
    told = bench("handover")
    handover, plan = told["handover"], told["plan"]
    figures = handover["figures"]
    assert set(figures) == {"kill_seconds", "kill_doubled", "term_seconds", "term_doubled", "cold_seconds"}
    assert all(figures[name]["value"] > 0 for name in ("kill_seconds", "term_seconds", "cold_seconds"))
    assert figures["kill_doubled"]["passed"], "what was in flight, at most"
    assert figures["term_doubled"]["value"] == 0
    assert min(handover["events"]) > 500
    assert 0 < handover["max_in_flight"] <= plan["page"] * plan["pages"]


@pytest.mark.serial
def test_latency(bench: Bench) -> None:
    latency = bench("latency")["latency_ms"]
    assert latency["store"] == "log"
    assert latency["events"] > 100
    assert 0 < latency["p50"] <= latency["p99"]
    assert latency["relay_cpu_share"] > 0
    assert "relay" in latency["idle_cores"]
    loop = latency["loop"]
    assert 0 < loop["p50"] <= loop["p99"]
    assert latency["figures"]["p50_ratio"]["value"] == pytest.approx(latency["p50"] / loop["p50"], 0.01)


@pytest.mark.serial
def test_latency_against_the_rate(bench: Bench) -> None:
    points = bench("rates")["sweep"]["rates"]["log"]["points"]
    assert [point["rate"] for point in points] == [50.0, 200.0]
    assert len({(point["p50"], point["p99"]) for point in points}) == 2
    assert all(0 < point["p50"] <= point["p99"] for point in points)
    assert all(point["share"] > 0 for point in points)


@pytest.mark.serial
def test_what_a_wake_up_costs_the_writer(bench: Bench) -> None:
    wakeup = bench("wakeup")["wakeup"]
    assert 0 < wakeup["on_p50_ms"] <= wakeup["on_p99_ms"]
    assert 0 < wakeup["off_p50_ms"] <= wakeup["off_p99_ms"]
    assert wakeup["rate"] > 0
    compared = wakeup["figures"]["ratio"]
    assert compared["value"] == pytest.approx(wakeup["on_p99_ms"] / wakeup["off_p99_ms"], 0.02)
    assert len(compared["samples"]) == len(compared["bare"]) == 2


@pytest.mark.serial
def test_a_held_horizon(bench: Bench) -> None:
    horizon = bench("horizon")["horizon"]
    assert horizon["horizon_age"] > 0, "something holds xmin"
    assert horizon["doubled"] == 0
    assert len(horizon["windows"]) == len(horizon["beside"]) == 3
    told = horizon["windows"] + horizon["beside"]
    assert all(window["per_second"] >= 0 and 0 < window["p50"] <= window["p99"] for window in told)
    assert horizon["windows"] != horizon["beside"], "each relay has a load of its own"
    figures = {key: figure["value"] for key, figure in horizon["figures"].items()}
    # Of three windows the first is the beginning and the last the end, so the one follows from the others.
    assert figures["beside_ratio"] == pytest.approx(figures["p99_ratio"] / figures["free_p99_ratio"], 1e-3)


@pytest.mark.serial
def test_the_memory_before_a_backlog(bench: Bench) -> None:
    memory = bench("memory")["memory"]
    assert memory["backlog"] == 20_000
    assert memory["events_per_second"] > 0
    assert 20 < memory["figures"]["peak_mb"]["value"] < 150
    assert memory["samples"][-1]["mb"] > 20


@pytest.mark.serial
def test_sigterm_leaves_no_measured_process_behind(postgres: PostgresAddress, kafka: str) -> None:
    servers = ["--broker", kafka, "--postgres", postgres.admin_dsn]
    command = [sys.executable, "-m", "quiesce", "bench", "relay", "--quick", "--only", "latency", *servers]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as running:
        measured: list[Path] = []
        try:
            until = time.monotonic() + 40
            while not measured:
                assert running.poll() is None, "it ended by itself"
                assert time.monotonic() < until
                children = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
                measured = [Path("/proc", child) for child in children if SUBJECT in command_of(child)]
                time.sleep(0.01)
            running.terminate()
            assert running.wait(15) == 143
            assert not [process for process in measured if process.exists()]
        finally:
            running.kill()


def command_of(pid: str) -> list[str]:
    try:
        return Path("/proc", pid, "cmdline").read_text().split("\0")
    except OSError:
        # It has ended meanwhile.
        return []


@pytest.mark.parametrize("store", ["log", "row"])
def test_the_bare_loop_and_the_relay_put_the_same_messages_on_the_topic(
    store: str, kafka: str, topic: Callable[..., str], postgres: PostgresAddress
) -> None:
    names = {module: topic("bench", partitions=2) for module in (BARE, SUBJECT)}
    found = {}
    for module, name in names.items():
        tables = Tables(postgres, name)
        dsn = tables.fill(300, 7, 40)
        job = Job(dsn, kafka, name, store, 300, page=100)
        with Measured.module(module, job.dumps()) as process:
            process.heard("moved")
            assert (process.end() if module == SUBJECT else process.over()).status == 0
        tables.drop()
        found[module] = messages(kafka, name, 300)
    bare, ours = found[BARE], found[SUBJECT]
    assert [len(bare), len(ours)] == [300, 300]
    # Of each key the same values in the same order, in the same partition, with the same headers but for the identity.
    assert sorted(bare, key=lambda one: one[1]) == sorted(ours, key=lambda one: one[1])


def messages(bootstrap: str, topic: str, number: int) -> list[tuple[int, bytes, list[str], bytes]]:
    """Partition, key, value and headers; of the identity only that it is there."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "t", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(2)])
    found = []
    message: Any
    for message in consumer.consume(number, timeout=30):
        assert message.error() is None
        headers = dict(message.headers() or [])
        assert len(headers["id"]) == 36
        named = [f"{name}={value.decode()}" for name, value in headers.items() if name != "id"]
        found.append((message.partition(), message.key(), ["id", *named], message.value()))
    consumer.close()
    return found


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--page", "0"], "takes a whole number, 1 or more"),
        (["--payload", "15"], "takes a whole number from 16 to 900000"),
        (["--payload", "1000000"], "takes a whole number from 16 to 900000"),
        (["--peers", "celery"], "takes all, none or names of"),
        (["--only", "speed"], "takes names of throughput, pair"),
    ],
)
def test_a_bad_flag_is_one_line_and_2(flags: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["bench", "relay", *flags])
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert flags[0] in told
    assert says in told


def test_a_file_that_holds_something_else_is_told_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "figures.json"
    path.write_text("mine")
    assert main(["bench", "relay", "--write", str(path)]) == 78
    assert "Takes a file of a former run" in capsys.readouterr().err
    assert path.read_text() == "mine"
