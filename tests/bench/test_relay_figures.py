"""The arithmetic of the relay's bench: figures, order, windows, curves, peers. No server takes part."""

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from quiesce.bench.cores import Cores, Shares, memory
from quiesce.bench.figures import Figure
from quiesce.bench.relay_gauge import Gauge
from quiesce.bench.relay_handover import Handover, handover_result
from quiesce.bench.relay_job import Job
from quiesce.bench.relay_latency import Latency, Ways
from quiesce.bench.relay_load import Timings
from quiesce.bench.relay_measures import Move, Throughput
from quiesce.bench.relay_memory import growth
from quiesce.bench.relay_order import OrderCheck
from quiesce.bench.relay_peers import measure_peer
from quiesce.bench.relay_plan import PARTS, Plan, chosen_parts
from quiesce.bench.relay_rates import PEERS, NotMeasured, Peer, PeerFigure, Rates, chosen, rates
from quiesce.bench.relay_run import told_of
from quiesce.bench.relay_windows import beginning, drift, windows
from quiesce.bench.results import Result, assembled, kept_everywhere, read_figures, write_figures
from quiesce.cli.bench_relay import plan_of
from quiesce.cli.flags import read_environment
from quiesce.cli.main import parser
from quiesce.errors import SettingsError, StartError
from quiesce.testing.postgres_address import PostgresAddress

QUIET = Shares(10.0, {"relay": 0.5}, 1.2, 0.05, 0.0)


def throughput(ours: tuple[float, ...], bare: tuple[float, ...], store: str = "log") -> Throughput:
    def moves(rates: tuple[float, ...]) -> tuple[Move, ...]:
        return tuple(Move(rate, 4.0, QUIET) for rate in rates)

    return Throughput(store, 500, moves(ours), moves(bare))


def ways(half: float, most: float, share: float, idle: float | None = None) -> Ways:
    """A hundred events: so many milliseconds for 50 of them and for one."""
    ms = [half] * 97 + [most] * 3
    rest = None if idle is None else Shares(4.0, {"relay": idle}, 0.2, 0.0, 0.0)
    return Ways(ms, 200.0, Shares(10.0, {"relay": share}, 1.2, 0.05, 0.0), rest)


def test_the_medians_are_compared() -> None:
    one = throughput((80.0, 74.0, 9000.0), (100.0, 1.0, 105.0))
    assert one.ratio == 0.8
    assert one.result().passed
    assert any("at least 0.75" in line and line.endswith("  kept") for line in one.result().lines())
    assert not throughput((74.0,), (100.0,)).result().passed
    assert not throughput((99.0,), (100.0,), "row").result().passed


def test_one_figure_that_misses_fails_its_part_and_the_whole() -> None:
    good = Latency(200.0, [ways(1.9, 4.9, 0.1, 0.001)])
    bad = Latency(200.0, [ways(2.1, 5.1, 0.2, 0.02)])
    assert good.result("log").passed
    assert [figure.passed for figure in bad.result("log").figures] == [False] * 4
    kept = assembled([throughput((80.0,), (100.0,)).result(), good.result("log")])
    assert kept_everywhere(kept)
    assert not kept_everywhere(assembled([bad.result("log")], kept))
    assert not kept_everywhere({"sweep": {"deep": {"figures": {"one": {"passed": False}}}}})


def test_the_way_to_the_consumer_stands_beside_the_loops() -> None:
    ours = [ways(1.9, 4.9, 0.1, 0.001), ways(1.9, 4.9, 0.2)]
    result = Latency(200.0, ours, [ways(3.8, 9.8, 0.3)]).result("log")
    assert result.passed is False, "0.15 of a core is asked for"
    told = result.as_json()
    assert {name: told["figures"][name]["value"] for name in ("p50_ratio", "p99_ratio", "busy_ratio")} == {
        "p50_ratio": 0.5,
        "p99_ratio": 0.5,
        "busy_ratio": 0.5,
    }
    assert told["loop"] == {"p50": 3.8, "p99": 9.8, "busy_share": 0.3}
    assert told["relay_cpu_share"] == pytest.approx(0.15)
    assert told["relay_idle_cpu_share"] == 0.001
    assert told["events"] == 200
    assert "the loop takes 3.80 ms, 99 of 100 9.80 ms, at 0.300 of a core" in result.says


def test_a_part_that_failed_is_told_of_fails_the_whole_and_takes_no_other_with_it() -> None:
    def lost() -> Iterator[Result]:
        yield Result(("pair",), "two")
        raise StartError("3 of 850 events did not arrive in 15 s")

    results = list(told_of("handover", "a relay goes", lost()))
    assert list(results[1].lines()) == ["a relay goes: FAILED: 3 of 850 events did not arrive in 15 s"]
    whole = assembled(results)
    assert whole["pair"]["passed"]
    assert whole["failed"]["handover"]["failed"].startswith("3 of 850")
    assert not kept_everywhere(whole)


def test_a_part_that_could_not_be_measured_fails_nothing() -> None:
    missing = Result(("peers", "seed"), "seed", missing="Go is not here")
    assert assembled([missing]) == {"peers": {"seed": {"missing": "Go is not here"}}}
    assert kept_everywhere(assembled([missing]))
    assert list(missing.lines()) == ["seed: not measured: Go is not here"]


def test_a_figure_with_a_floor_is_kept_at_it_and_one_that_counts_is_kept_at_its_ceiling() -> None:
    assert Figure("k", "says", 0.75, "", 0.75, at_least=True).passed
    assert not Figure("k", "says", 0.749, "", 0.75, at_least=True).passed
    assert Figure("k", "says", 0, "", 0, or_equal=True).passed
    assert not Figure("k", "says", 1, "", 0, or_equal=True).passed
    assert "at most 0" in Figure("k", "says", 1, "", 0, or_equal=True).line()
    assert Figure("k", "says", 1, "", 0, or_equal=True).line().endswith("NOT KEPT")


def test_what_others_took_of_the_cores_is_said() -> None:
    assert not QUIET.loaded
    assert Shares(10.0, {}, 1.0, 0.5, 0.0).loaded
    assert Shares(10.0, {}, 1.0, 0.0, 0.5).loaded, "the host took it"
    assert "LOADED BY OTHERS" in Shares(10.0, {}, 1.0, 0.5, 0.0).line()
    assert not Shares(10.0, {}, 1.0, None, None).loaded, "nobody tells"


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells it")
def test_the_cores_that_this_process_uses_are_counted_as_ours() -> None:
    cores = Cores()
    before = sum(range(1_000_000))
    while (used := cores.used()).ours * used.seconds < 0.05:
        before += sum(range(100_000))
    assert before
    assert used.others is None or used.others >= 0
    assert memory(os.getpid()) > 5


def test_a_job_survives_its_way_to_the_process() -> None:
    job = Job("postgresql://x", "127.0.0.1:1", "t", "row", 10)
    assert Job.loads(job.dumps()) == job
    assert job.on("other").dsn == "other"


def test_a_gauge_is_read_from_elsewhere() -> None:
    with Gauge.fresh() as reader:
        writer = Gauge(reader.path)
        assert (reader.moved, reader.first_at, reader.in_flight) == (0, 0.0, 0)
        writer.settled(10, 5.5)
        writer.settled(30, 7.5)
        writer.flying(12, 400)
        assert (reader.moved, reader.first_at, reader.last_at) == (30, 5.5, 7.5)
        assert (reader.in_flight, reader.limit) == (12, 400)
    assert not reader.path.exists()


def test_order_counts_repeats_and_what_came_too_early() -> None:
    check = OrderCheck(keys=2)
    for number in (0, 1, 2, 4, 3, 2):
        check.saw(number)
    assert (check.events, check.doubled, check.disordered) == (5, 1, 0)
    check.saw(8)  # 6 is left out
    check.saw(6)  # and comes behind 8
    assert check.disordered == 1
    assert check.doubled == 2


def test_only_the_events_of_a_load_of_its_own_are_timed() -> None:
    timings, others = Timings(3), Timings(3)
    payloads = [timings.payload(number) for number in range(3)]
    assert len(payloads[0]) == 200
    for number in range(3):
        timings.was_committed(number, 10.0 + number)
    timings.arrived(payloads[0], 10.5)
    timings.arrived(payloads[0], 10.9)
    timings.arrived(payloads[2], 12.25)
    timings.arrived(others.payload(1), 11.0)
    assert (timings.missing, timings.doubled) == (1, 1)
    assert timings.ways(0.0) == [500.0, 250.0]
    assert timings.ways(11.0, 13.0) == [250.0]


def test_windows_hold_what_came_in_them_and_the_ways_of_what_was_committed_in_them() -> None:
    timings = Timings(40)
    for number in range(40):
        at = 100.0 + number * 0.1
        timings.was_committed(number, at)
        timings.arrived(timings.payload(number), at + (0.001 if number < 20 else 0.003))
    first, second = windows(timings, 100.0 - 1e-6, 2.0, 2)
    assert (first.per_second, second.per_second) == (10.0, 10.0)
    assert first.p50 == pytest.approx(1.0)
    assert second.p99 == pytest.approx(3.0)


def test_the_end_is_compared_with_the_beginning() -> None:
    assert drift([2.0, 9.0, 9.0, 9.0, 3.0]) == 1.5
    tens = [1.0, 3.0, *[9.0] * 6, 4.0, 6.0]
    assert (beginning(tens), drift(tens)) == (2.0, 2.5), "medians of a fifth each"
    assert drift([0.0, 5.0]) > 1.1, "out of nothing comes no division by it"


def test_memory_is_flat_if_its_last_quarter_is_like_its_second() -> None:
    grows_first = [(0, 40.0), (30, 80.0), (40, 82.0), (80, 81.0), (99, 81.0), (100, 81.0)]
    assert growth(grows_first, 100) == pytest.approx(1.0)
    assert growth([(0, 40.0), (30, 80.0), (90, 120.0)], 100) == pytest.approx(1.5)
    assert growth([(0, 40.0), (100, 50.0)], 100) == pytest.approx(1.25), "too few samples"


def test_what_a_kill_doubled_stands_beside_what_was_in_flight_then() -> None:
    def killed(doubled: int, in_flight: int) -> Handover:
        return Handover(0.5, 1000, doubled, in_flight, 4000)

    stopped = [Handover(0.1, 1000, 0, 0, 4000)]
    good = handover_result("log", [killed(8, 10), killed(10, 10)], stopped, [0.5], QUIET)
    assert good.passed
    bad = handover_result("log", [killed(8, 10), killed(3, 2)], stopped, [0.5], QUIET)
    assert [figure.key for figure in bad.figures if figure.passed is False] == ["kill_doubled"]


def test_parts_are_chosen_by_name_and_measured_in_one_order() -> None:
    assert chosen_parts("memory, throughput,memory") == ("throughput", "memory")
    with pytest.raises(ValueError, match="takes names of throughput, pair"):
        chosen_parts("speed")
    assert tuple(PARTS) == chosen_parts(",".join(PARTS))


def test_a_file_keeps_the_parts_that_were_not_measured_anew(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    assert read_figures(path) == {}
    write_figures(path, assembled([Result(("stores", "log"), "one", (), {"is": 1}), Result(("pair",), "two")]))
    write_figures(path, assembled([Result(("stores", "log"), "one", (), {"is": 2})], read_figures(path)))
    told = json.loads(path.read_text())
    assert told["stores"]["log"]["is"] == 2
    assert told["pair"]["passed"] is True
    path.write_text("no json")
    with pytest.raises(SettingsError, match="Takes a file of a former run"):
        read_figures(path)
    path.write_text("[]")
    with pytest.raises(SettingsError, match="no JSON object"):
        read_figures(path)
    with pytest.raises(SettingsError, match="is no directory"):
        read_figures(tmp_path / "nowhere" / "figures.json")


def planned(*flags: str) -> Plan:
    arguments = parser().parse_args(["bench", "relay", *flags])
    read_environment(arguments)
    return plan_of(arguments)


def test_the_flags_say_which_parts_are_measured_and_at_what_length() -> None:
    assert planned().parts == ("throughput", "pair", "latency", "handover")
    assert planned("--sweep").parts == ("throughput", "pair", "pages", "latency", "rates", "handover")
    assert planned("--full", "--sweep").parts == tuple(PARTS)
    assert planned("--full").peers == tuple(PEERS)
    assert planned("--full", "--peers", "none").peers == ()
    assert planned("--full", "--only", "memory").parts == ("memory",)
    assert planned("--full", "--only", "memory").peers == ()
    assert planned("--quick", "--events", "1000000").events == 20_000
    assert planned("--full", "--only", "memory").effort.memory_events == 5_000_000
    assert planned().effort.by, "four minutes"
    assert planned("--rounds", "7").effort.rounds == 7
    assert not planned("--rounds", "7").effort.by, "as many as were asked for"


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
    assert any("NOT KEPT" in line for line in figure("log", 20_001.0, 30_000.0).result().lines())


def test_peers_stand_in_the_object() -> None:
    missing = NotMeasured(PEERS["seed"], "Go is not here")
    told = assembled([figure("log", 20_000.0, 30_000.0).result(), missing.result()])["peers"]
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
            "passed": True,
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
    (line,) = outcome.result().lines()
    assert "\n" not in line
    return line


def test_every_peer_has_its_program_in_the_checkout() -> None:
    programs = Path(__file__).parents[2] / "benchmarks" / "relay_peers"
    for peer in PEERS.values():
        assert (programs / peer.program).exists()
    pins = (programs / "requirements.txt").read_text().splitlines()
    assert all(re.fullmatch(r"[\w.\-]+==[\w.]+", line) for line in pins if not line.startswith("#"))
