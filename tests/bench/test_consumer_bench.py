"""`quiesce bench consumer`: runs on real servers, tells real figures, and what it refuses."""

import json
import subprocess
import sys

import pytest

from quiesce.bench.consumer_run import Outcome
from quiesce.bench.cores import Shares
from quiesce.bench.relay_measures import Move
from quiesce.cli.main import main
from quiesce.testing.postgres_address import PostgresAddress

RATES = (
    "bare_records_per_second",
    "tuned_records_per_second",
    "records_per_second",
    "rows_records_per_second",
    "inbox_records_per_second",
)


@pytest.mark.timeout(240)
def test_it_measures_each_on_real_servers_and_ends_with_one_object(postgres: PostgresAddress, kafka: str) -> None:
    servers = ["--broker", kafka, "--postgres", postgres.admin_dsn]
    command = [sys.executable, "-m", "quiesce", "bench", "consumer", "--quick", "--json", "--records", "3000", *servers]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=220, check=False)
    assert ran.returncode in (0, 1), ran.stderr
    told = json.loads(ran.stdout.splitlines()[-1])
    assert told["passed"] is (ran.returncode == 0)
    assert all(told[rate] > 100 for rate in RATES)
    # Rates are rounded to whole records, ratios to three digits.
    assert told["ratio"] == pytest.approx(told["records_per_second"] / told["bare_records_per_second"], abs=0.01)
    assert told["inbox_ratio"] == pytest.approx(
        told["inbox_records_per_second"] / told["rows_records_per_second"], abs=0.01
    )
    assert set(told["cpu_us_per_record"]) == {"bare", "tuned", "nothing", "rows", "inbox"}
    assert all(part["consumer"] > 0 for part in told["cpu_us_per_record"].values())
    assert told["plan"]["records"] == 3000
    assert "beside the bare loop" in ran.stdout


def moves(*rates: float) -> list[Move]:
    shares = Shares(2.0, {"consumer": 0.9, "broker": 0.5}, 1.4, 0.0, 0.0)
    return [Move(rate, 3.0, shares) for rate in rates]


@pytest.mark.parametrize(("ours", "inbox", "passed"), [(60, 70, True), (59, 70, False), (60, 69, False)])
def test_the_medians_count_and_both_ratios_are_asked(ours: float, inbox: float, passed: bool) -> None:
    outcome = Outcome(
        {
            "bare": moves(100, 1, 900),
            "tuned": moves(200, 1, 900),
            "nothing": moves(ours, 1, 900),
            "rows": moves(100, 1, 900),
            "inbox": moves(inbox, 1, 900),
        }
    )
    told = outcome.as_json()
    assert (told["ratio"], told["inbox_ratio"]) == (ours / 100, inbox / 100)
    assert told["tuned_ratio"] == ours / 200, "told, and not asked for"
    assert outcome.passed is passed
    assert outcome.cpu("bare") == {"consumer": 3.0, "broker": 5000.0}


def test_it_tells_what_it_does_not_take(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["bench", "consumer", "--payload", "20"])
    assert "takes a whole number from 40 to 900000" in capsys.readouterr().err
