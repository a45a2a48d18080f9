"""`quiesce outbox ...`: what each verb prints, for people and as JSON, what it refuses, and its status."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import pytest
from operations_table import as_if_new, belongs_to, events, park, read_to_the_end, states, written
from outbox_table import write
from their_tables import SHAPES, prepare

from quiesce.cli.main import main
from quiesce.outbox.event import OutboxEvent
from quiesce.postgres import connect, schema
from quiesce.postgres.driver import Connection

T = TypeVar("T")
Ran = tuple[int, str, str]
Quiesce = Callable[..., Ran]
InDatabase = Callable[[Callable[[Connection], Awaitable[Any]]], Any]


@pytest.fixture
def dsn(outbox_database: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An outbox as if new, which every verb finds by the environment."""

    async def clean() -> None:
        async with as_if_new(outbox_database):
            pass

    asyncio.run(clean())
    monkeypatch.setenv("QUIESCE_DSN", outbox_database)
    yield outbox_database
    asyncio.run(clean())


@pytest.fixture
def quiesce(dsn: str, capsys: pytest.CaptureFixture[str]) -> Quiesce:
    def run(*argv: str) -> Ran:
        status = main(["outbox", *argv])
        return (status, *capsys.readouterr())

    return run


@pytest.fixture
def within(dsn: str) -> InDatabase:
    """Does something with a connection."""

    def run(work: Callable[[Connection], Awaitable[T]]) -> T:
        async def connected() -> T:
            async with connect(dsn) as db:
                return await work(db)

        return asyncio.run(connected())

    return run


async def dead_ones(db: Connection) -> list[UUID]:
    await belongs_to(db, "log")
    ids = await written(db, 4, "old")
    await park(db, ids, "dead", seconds_ago=7200, reason="too large")
    await read_to_the_end(db)
    return ids


def test_status_as_text_and_json(quiesce: Quiesce, within: InDatabase) -> None:
    assert quiesce("status") == (
        0,
        "store       none has opened it yet\nwaiting     0 events\ndispatched  0\n"
        "set aside   retry 0, held 0, dead 0\n",
        "",
    )
    within(dead_ones)
    within(lambda db: written(db, 3))
    status, out, _ = quiesce("status")
    assert status == 0
    assert out.startswith("store       log store\nwaiting     3 events, the oldest for ")
    assert out.count("nobody") == 16
    told = json.loads(quiesce("status", "--json")[1])
    assert (told["store"], told["waiting"], told["parked"]["dead"]) == ("log", {"events": 3, "exact": True}, 4)
    assert (len(told["lanes"]), told["paused"]) == (16, None)


def test_peek_hides_payloads_until_asked(quiesce: Quiesce, within: InDatabase) -> None:
    async def mixed(db: Connection) -> None:
        await write(
            db,
            *events(1, "text", payload=b"top secret"),
            *events(1, "bytes", payload=b"\xff\x00"),
            OutboxEvent("orders", "odd\nkey\x1b[2J", "Gone"),
        )

    assert quiesce("peek") == (0, "nothing waits\n", "")
    within(mixed)
    status, out, _ = quiesce("peek")
    assert status == 0
    assert "secret" not in out
    assert "*** (10 bytes)" in out
    assert "tombstone" in out
    assert "odd\\nkey\\x1b[2J" in out
    assert len(out.splitlines()) == 4
    assert "top secret" in quiesce("peek", "--payloads")[1]
    (first, second, third) = json.loads(quiesce("peek", "--json")[1])["events"]
    assert "payload" not in first
    assert "position" not in first
    assert (first["bytes"], third["bytes"]) == (10, None)
    (first, second, third) = json.loads(quiesce("peek", "--json", "--payloads")[1])["events"]
    assert (first["payload"], first["headers"]) == ("top secret", {"secret": "s3"})
    assert (second["payload"], second["payload_base64"]) == (None, "/wA=")
    assert third["payload"] is None
    (only,) = json.loads(quiesce("peek", "--json", "--key", "text0")[1])["events"]
    assert only["key"] == "text0"
    assert quiesce("peek", "--key", "nobody")[1] == "nothing that matches waits\n"


def test_dead_redrive_and_purge(quiesce: Quiesce, within: InDatabase) -> None:
    ids = within(dead_ones)
    status, out, _ = quiesce("dead", "--limit", "3")
    assert (status, out.count("too large"), out.splitlines()[-1]) == (0, 3, "1 more")
    told = json.loads(quiesce("dead", "--json", "--key", "old1")[1])
    assert (told["total"], [one["id"] for one in told["events"]]) == (1, [str(ids[1])])
    assert quiesce("redrive", "--event", str(ids[0]), "--dry-run") == (0, "would redrive 1 events\n", "")
    assert set(within(states).values()) == {"dead"}
    assert quiesce("redrive", "--event", str(ids[0]), "--by", "anna") == (0, "redriven: 1 events\n", "")
    assert json.loads(quiesce("redrive", "--all", "--json")[1]) == {"redriven": 3, "dry_run": False}
    assert set(within(states).values()) == {"retry"}
    within(lambda db: db.execute("UPDATE outbox_parked SET state = 'dead', next_at = NULL"))
    assert quiesce("purge", "--older-than", "1h", "--dry-run")[1] == "would delete 4 dead letters\n"
    assert quiesce("purge", "--older-than", "3h")[1] == "deleted: 0 dead letters\n"
    assert json.loads(quiesce("purge", "--older-than", "1h", "--key", "old2", "--json")[1])["purged"] == 1
    assert quiesce("purge", "--older-than", "90m")[1] == "deleted: 3 dead letters\n"
    assert quiesce("dead")[1] == "no dead letters\n"
    audit = within(lambda db: db.fetch("SELECT verb, said_by, events FROM outbox_audit ORDER BY id"))
    assert [row[0] for row in audit] == ["redrive", "redrive", "purge", "purge", "purge"]
    assert (audit[0][1], [row[2] for row in audit]) == ("anna", [1, 3, 0, 1, 3])
    assert audit[1][1] not in (None, "", "anna")


def test_pause_and_resume(quiesce: Quiesce) -> None:
    assert quiesce("resume")[1] == "was not paused\n"
    assert quiesce("pause", "--dry-run")[1] == "would pause\n"
    assert quiesce("pause", "--by", "anna", "--why", "brokers move")[1] == "paused\n"
    assert quiesce("pause", "--by", "ben")[1].startswith("paused already, since 20")
    out = quiesce("status")[1]
    assert "PAUSED      since 20" in out
    assert "by anna: brokers move" in out
    assert json.loads(quiesce("resume", "--dry-run", "--json")[1]) == {"changed": True, "dry_run": True}
    assert quiesce("resume")[1].startswith("resumed: was paused by anna since 20")


def test_rebase_shows_both_choices_and_takes_one(quiesce: Quiesce, within: InDatabase) -> None:
    within(dead_ones)
    within(lambda db: written(db, 3))
    within(lambda db: db.execute("UPDATE outbox_control SET system_identifier = 1"))
    status, out, _ = quiesce("rebase", "--dry-run")
    assert status == 0
    assert "another server, or restored" in out
    assert "--resend-all-unknown would send: 3 events that were not read, 0 that were set aside" in out
    assert "--skip-to-now would never send: 3 events" in out
    assert quiesce("rebase")[0] == 78
    assert quiesce("rebase", "--skip-to-now", "--resend-all-unknown")[0] == 78
    status, out, _ = quiesce("rebase", "--skip-to-now")
    assert (status, "will never be sent: 3 events" in out) == (0, True)
    assert quiesce("peek")[1] == "nothing waits\n"
    told = json.loads(quiesce("rebase", "--dry-run", "--json")[1])
    assert (told["why"], told["unread"], told["choice"], told["behind_dead"]) == ([], 0, None, 0)


def test_rebase_tells_what_waits_behind_dead_letters(quiesce: Quiesce, within: InDatabase) -> None:
    async def held(db: Connection) -> None:
        ids = await written(db, 80)
        await park(db, ids[:1], "dead")
        await park(db, ids[40:41], "held")

    within(lambda db: belongs_to(db, "log"))
    within(held)
    out = quiesce("rebase", "--dry-run")[1]
    assert "1 that were set aside to be retried\n1 of these waits behind a dead letter of their key" in out


def test_schema_apply_validate_and_grants(quiesce: Quiesce, within: InDatabase) -> None:
    assert quiesce("schema", "apply")[1].endswith("already there\n")
    status, out, _ = quiesce("schema", "apply", "--grants", "writer=app", "--grants", "relay=My Relay")
    lines = out.splitlines()
    assert (status, lines[0][:3]) == (0, "-- ")
    assert "GRANT INSERT ON public.outbox_event TO app;" in lines
    assert 'GRANT SELECT ON public.quiesce_schema TO "My Relay";' in lines
    assert all(line.startswith("GRANT ") and line.endswith(";") for line in lines[1:])
    assert quiesce("schema", "apply", "--grants", "app")[0] == 78
    assert quiesce("schema", "validate")[0] == 0
    within(lambda db: db.execute("ALTER TABLE outbox_event ALTER topic DROP NOT NULL"))
    try:
        status, out, err = quiesce("schema", "validate")
        assert (status, out) == (1, "column outbox_event.topic: is: text; should be: text NOT NULL\n")
        assert err == "quiesce: the outbox's tables differ in 1 point\n"
        told = json.loads(quiesce("schema", "validate", "--json")[1])
        assert (told["valid"], len(told["differences"])) == (False, 1)
    finally:
        within(lambda db: db.execute("ALTER TABLE outbox_event ALTER topic SET NOT NULL"))


def test_schema_apply_says_first_what_it_would_do(quiesce: Quiesce, bare: str) -> None:
    steps = [f"{step.version:04} {step.name}" for step in schema.migrations()]
    latest = schema.latest_version()
    status, out, _ = quiesce("schema", "validate", "--dsn", bare, "--json")
    told = json.loads(out)
    assert (status, told["valid"], told["version"]) == (1, False, latest)
    assert "Run: quiesce outbox schema apply" in told["differences"][0]
    told = (0, f"outbox schema: version 0, would apply {', '.join(steps)}\n", "")
    assert quiesce("schema", "apply", "--dsn", bare, "--dry-run") == told
    assert quiesce("schema", "apply", "--dsn", bare, "--dry-run") == told
    said = json.loads(quiesce("schema", "apply", "--dsn", bare, "--json")[1])
    assert said == {"version": latest, "was": 0, "steps": steps, "store": None, "grants": [], "dry_run": False}
    told = (0, f"outbox schema: version {latest}, would apply nothing\n", "")
    assert quiesce("schema", "apply", "--dsn", bare, "--dry-run") == told
    said = json.loads(quiesce("schema", "apply", "--dsn", bare, "--json", "--grants", "writer=app")[1])
    assert (said["steps"], "GRANT INSERT ON public.outbox_event TO app;" in said["grants"]) == ([], True)


@pytest.mark.parametrize("verb", [("dead",), ("redrive",), ("purge", "--older-than", "0")], ids=lambda verb: verb[0])
def test_times_the_wrong_way_round_are_refused(quiesce: Quiesce, verb: tuple[str, ...]) -> None:
    status, out, err = quiesce(*verb, "--since", "2026-01-31T12:00", "--until", "2026-01-31T12:00+02:00")
    assert (status, out) == (78, "")
    assert err == (
        "quiesce: --until: got 2026-01-31T12:00:00+02:00, takes a time after --since 2026-01-31T12:00:00+00:00\n"
    )


@pytest.mark.parametrize("age", ["30", "1.5", "30 ", "d", "-1d"])
def test_an_age_without_a_unit_is_refused_since_seconds_delete_what_days_would_keep(
    quiesce: Quiesce, age: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        quiesce("purge", f"--older-than={age}")
    assert ended.value.code == 2
    assert "takes an age such as 90s, 30m, 12h or 7d" in capsys.readouterr().err


def test_long_texts_of_others_do_not_fill_the_screen(quiesce: Quiesce, within: InDatabase) -> None:
    within(lambda db: written(db, 1, "k" * 5000))
    assert len(quiesce("peek")[1]) < 1000
    assert len(json.loads(quiesce("peek", "--json")[1])["events"][0]["key"]) > 5000
    quiesce("pause", "--by", "x\ny", "--why", "w" * 5000)
    (line,) = [line for line in quiesce("status")[1].splitlines() if line.startswith("PAUSED")]
    assert len(line) < 200
    assert "x\\ny" in line


def test_schema_apply_gives_the_tables_to_one_kind_of_store(quiesce: Quiesce, bare: str) -> None:
    def apply(*more: str) -> tuple[int, str, str]:
        return quiesce("schema", "apply", "--dsn", bare, *more)

    assert apply("--for-store", "row", "--dry-run")[1].endswith(", and give it to row stores\n")
    assert apply("--dry-run")[1].startswith("outbox schema: version 0, would apply ")
    latest = schema.latest_version()
    told = (0, f"outbox schema: version {latest}, was 0, for row stores\n", "")
    assert apply("--for-store", "row") == told
    assert json.loads(apply("--for-store", "row", "--json")[1])["store"] == "row"
    assert quiesce("schema", "validate", "--dsn", bare)[0] == 0
    status, out, err = apply("--for-store", "log")
    assert (status, out) == (78, "")
    assert "got OutboxLog, takes OutboxRows" in err
    assert len(err.splitlines()) == 1
    shown = quiesce("schema", "show", "--for-store", "row")[1]
    assert shown.startswith(quiesce("schema", "show")[1].rstrip())
    assert "DROP INDEX IF EXISTS outbox_event_xid;" in shown


KNOWN = [
    ("status",),
    ("peek",),
    ("dead",),
    ("redrive", "--all"),
    ("redrive", "--all", "--dry-run"),
    ("purge", "--older-than", "0"),
    ("pause",),
    ("resume", "--dry-run"),
    ("rebase", "--skip-to-now"),
    ("schema", "validate"),
    ("schema", "apply"),
    ("schema", "apply", "--dry-run"),
]
"""Every verb that needs our tables, but for `doctor`."""


async def another_table(dsn: str) -> None:
    async with connect(dsn) as db:
        await db.execute(SHAPES["seeds"].sql)


@pytest.mark.parametrize("argv", KNOWN, ids=" ".join)
def test_a_table_of_that_name_that_is_not_ours_is_told_in_one_line(
    quiesce: Quiesce, bare: str, argv: tuple[str, ...]
) -> None:
    asyncio.run(another_table(bare))
    status, out, err = quiesce(*argv, "--dsn", bare)
    (line,) = out.splitlines() if argv == ("schema", "validate") else err.splitlines()
    assert status in (1, 78)
    assert "a table outbox_event is there that this package did not make" in line
    checks = json.loads(quiesce("doctor", "--json", "--dsn", bare)[1])["checks"]
    assert (checks[-1]["name"], checks[-1]["verdict"]) == ("schema", "bad")
    assert "this package did not make" in checks[-1]["found"]


def test_a_mapped_table_is_not_looked_at_and_that_is_said(quiesce: Quiesce, bare: str) -> None:
    async def prepared() -> None:
        async with connect(bare) as db:
            await prepare(db, SHAPES["odd"].sql, SHAPES["odd"].table)

    asyncio.run(prepared())
    told = '"Set Aside" belongs to a table that an `OutboxTable` maps; `quiesce outbox` does not look at such'
    for argv in KNOWN:
        if argv[0] != "schema":
            status, out, err = quiesce(*argv, "--dsn", bare)
            assert (status, out, err.count("\n"), told in err) == (1, "", 1, True), argv
    checks = json.loads(quiesce("doctor", "--json", "--dsn", bare)[1])["checks"]
    assert told in checks[-1]["found"]
    assert quiesce("schema", "apply", "--dsn", bare)[0] == 0
    (check,) = (
        one for one in json.loads(quiesce("doctor", "--json", "--dsn", bare)[1])["checks"] if one["name"] == "store"
    )
    assert (check["verdict"], told in check["found"]) == ("warn", True)


def test_our_tables_beside_another_table_of_that_name(quiesce: Quiesce, bare: str) -> None:
    asyncio.run(another_table(bare))
    ours = f"{bare}?search_path=ours"
    status, _, err = quiesce("schema", "apply", "--dsn", ours)
    assert (status, err.count("\n"), "CREATE SCHEMA" in err) == (78, 1, True)

    async def make_schema() -> None:
        async with connect(bare) as db:
            await db.execute("CREATE SCHEMA ours")

    asyncio.run(make_schema())
    assert quiesce("schema", "apply", "--dsn", ours)[0] == 0
    assert quiesce("schema", "validate", "--dsn", ours)[0] == 0
    assert quiesce("peek", "--dsn", ours) == (0, "nothing waits\n", "")


def test_something_else_in_the_place_of_a_part_is_told_in_one_line(quiesce: Quiesce, bare: str) -> None:
    async def make_view() -> None:
        async with connect(bare) as db:
            await db.execute("CREATE VIEW outbox_parked AS SELECT 1 AS event_id")

    asyncio.run(make_view())
    status, out, err = quiesce("schema", "apply", "--dsn", bare)
    assert (status, out, err.count("\n")) == (78, "", 1)
    assert "is not what this package made, and nothing was done" in err


@pytest.mark.parametrize("argv", KNOWN, ids=" ".join)
def test_a_user_without_rights_is_told_in_one_line(quiesce: Quiesce, dsn: str, argv: tuple[str, ...]) -> None:
    name = f"poor_{dsn.rpartition('/')[2]}"

    async def as_owner(statement: str) -> None:
        async with connect(dsn) as db:
            await db.execute(statement)

    asyncio.run(as_owner(f"CREATE ROLE {name} LOGIN"))
    try:
        status, out, err = quiesce(*argv, "--dsn", dsn.replace("postgres@", f"{name}@"))
        assert (status, out, err.count("\n")) == (78, "", 1)
        assert "permission denied for table quiesce_schema" in err
        assert "prints" in err, "what to do"
        # One that may look, and not change.
        asyncio.run(as_owner(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {name}"))
        status, out, err = quiesce("redrive", "--all", "--dsn", dsn.replace("postgres@", f"{name}@"))
        assert (status, out, err.count("\n")) == (78, "", 1)
        assert "--grants operator=ROLE" in err
    finally:
        asyncio.run(as_owner(f"DROP OWNED BY {name}; DROP ROLE {name}"))


def test_doctor_says_what_is_bad_and_what_to_do(quiesce: Quiesce, within: InDatabase) -> None:
    # The tests' server has fsync off.
    status, out, _ = quiesce("doctor")
    assert status == 1
    assert "\nBAD   durability " in out
    assert " -> Set fsync = on\n" in out
    status, out, _ = quiesce("doctor", "--json")
    told = json.loads(out)
    assert (status, told["verdict"]) == (1, "bad")
    assert {"name", "verdict", "found", "advice"} == set(told["checks"][0])
    assert {check["name"] for check in told["checks"]} >= {"pooler", "clock", "held xmin", "autovacuum", "backlog"}


def test_doctor_of_brokers_that_do_not_answer(quiesce: Quiesce, tmp_path: Path) -> None:
    config = tmp_path / "client.properties"
    config.write_text("# for the tests\n\nsocket.timeout.ms = 1000\n")
    status, out, _ = quiesce("doctor", "--kafka", "127.0.0.1:1", "--kafka-config", str(config), "--json")
    brokers = json.loads(out)["checks"][-1]
    assert (status, brokers["name"], brokers["verdict"]) == (1, "brokers", "bad")
    config.write_text("sasl.password top-secret\n")
    status, _, err = quiesce("doctor", "--kafka", "127.0.0.1:1", "--kafka-config", str(config))
    assert (status, "line 1: takes name=value" in err, "top-secret" in err) == (78, True, False)
    status, _, err = quiesce("doctor", "--kafka", "127.0.0.1:1", "--kafka-config", str(tmp_path / "none"))
    assert status == 78
    assert quiesce("doctor", "--topic", "orders")[0] == 78


REFUSED = [
    (("redrive",), "takes --event, --key, --topic, --since or --until; or --all, alone"),
    (("redrive", "--all", "--key", "k"), "or --all, alone"),
    (("purge",), "--older-than: not set"),
    (("status", "--dsn", "nonsense"), "takes postgresql://"),
]


@pytest.mark.parametrize(("argv", "told"), REFUSED, ids=[" ".join(argv) for argv, _ in REFUSED])
def test_what_is_refused_in_one_line(quiesce: Quiesce, argv: tuple[str, ...], told: str) -> None:
    status, out, err = quiesce(*argv)
    assert (status, out, err.count("\n")) == (78, "", 1)
    assert told in err


UNREADABLE = [
    ("peek", "--lane", "16"),
    ("peek", "--limit", "0"),
    ("purge", "--older-than", "soon"),
    ("redrive", "--event", "17"),
    ("redrive", "--since", "yesterday"),
    ("redrive", "--all", "--rate", "0"),
    ("doctor", "--max-event-bytes", "-1"),
    ("doctor", "--topic", "orders=many"),
    ("doctor", "--topic", "=3"),
]


BEYOND = [
    ("peek", "--key", "\udcff"),
    ("dead", "--topic", "\udcff"),
    ("pause", "--by", "\udcff"),
    ("redrive", "--all", "--by", "\udcff"),
    ("dead", "--since", "0001-01-01T00:00:00+14:00"),
    ("purge", "--older-than", "99999999999999d", "--dry-run"),
    ("schema", "apply", "--grants", "relay=\udcff"),
]
"""`\udcff` is how Python reads a byte that is no UTF-8 from a command line."""


@pytest.mark.parametrize("argv", BEYOND, ids=lambda argv: ascii(" ".join(argv)))
def test_what_postgresql_does_not_take_is_told_in_one_line(quiesce: Quiesce, argv: tuple[str, ...]) -> None:
    status, out, err = quiesce(*argv)
    assert (status, out, err.count("\n")) == (78, "", 1)
    assert "a value that PostgreSQL does not take" in err
    assert err.isascii(), "it must not move a terminal's cursor, nor fail to be printed"


@pytest.mark.parametrize("argv", UNREADABLE, ids=" ".join)
def test_what_cannot_be_read(quiesce: Quiesce, argv: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        quiesce(*argv)
    assert ended.value.code == 2
    assert f"got '{argv[-1]}'" in capsys.readouterr().err


def test_no_dsn_no_tables_and_no_server(
    quiesce: Quiesce, bare: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, err = quiesce("status", "--dsn", bare)
    assert (status, "quiesce outbox schema apply" in err) == (1, True)
    status, _, err = quiesce("status", "--dsn", "postgresql://u:hidden@127.0.0.1:1/x")
    assert (status, "cannot be reached now" in err, "hidden" in err) == (1, True, False)
    status, out, _ = quiesce("doctor", "--dsn", bare, "--json")
    assert (status, json.loads(out)["checks"][-1]["advice"]) == (1, "Run: quiesce outbox schema apply")
    assert quiesce("schema", "validate", "--dsn", bare)[0] == 1
    monkeypatch.delenv("QUIESCE_DSN")
    assert quiesce("status")[0] == 78


def test_a_lock_that_somebody_holds_is_told_in_one_line(
    quiesce: Quiesce, dsn: str, within: InDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    within(dead_ones)
    monkeypatch.setattr("quiesce.postgres.operating._LOCK_TIMEOUT", 0.1)

    async def beside(db: Connection) -> Ran:
        async with db.transaction():
            await db.execute("LOCK TABLE outbox_lane IN ACCESS EXCLUSIVE MODE")
            return await asyncio.to_thread(quiesce, "rebase", "--skip-to-now")

    status, out, err = within(beside)
    assert (status, out, err.count("\n")) == (1, "", 1)
    assert "somebody else held a lock" in err
    assert "nothing was done" in err


def test_as_a_process_a_slow_redrive_stops_between_two_transactions(dsn: str, within: InDatabase) -> None:
    async def many(db: Connection) -> None:
        await belongs_to(db, "log")
        await park(db, await written(db, 100), "dead")

    async def begun(db: Connection) -> bool:
        return "retry" in (await states(db)).values()

    within(many)
    process = subprocess.Popen(
        [sys.executable, "-m", "quiesce", "outbox", "redrive", "--all", "--rate", "2"],
        env={**os.environ, "QUIESCE_DSN": dsn, "QUIESCE_JSON": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        end = time.monotonic() + 30
        while not within(begun):
            assert time.monotonic() < end
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=25)
    finally:
        process.kill()
        process.wait(5)
    assert (process.returncode, err) == (130, "")
    done = json.loads(out)["redriven"]
    assert 0 < done < 20
    assert list(within(states).values()).count("retry") == done
    assert within(lambda db: db.fetchval("SELECT events FROM outbox_audit")) == done
