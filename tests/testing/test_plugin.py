"""The pytest plugin, seen from runs of pytest of their own: who starts servers, who gets which, what is said."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import all_gone, guards, until

from quiesce.testing.postgres_address import PostgresAddress

pytest_plugins = ["pytester"]

ONE_OF_EACH = """
import pytest
def test_pure(): pass
def test_topic(topic): pass
def test_own(own_kafka): pass
@pytest.mark.needs("kafka")
def test_marked(): pass
"""
# Tests that leave behind where the server of their run was, and which worker they ran in.
WHERE = """
import os
import pytest
from pathlib import Path
here = Path(__file__).parent
@pytest.mark.parametrize("n", range(2))
def test_where(n, postgres, database):
    data = postgres.execute("SELECT current_setting('data_directory')")
    pid = Path(data, "postmaster.pid").read_text().split()[0]
    (here / f"where-{n}.new").write_text(f"{pid} {data}")
    (here / f"where-{n}.new").rename(here / f"where-{n}")
@pytest.mark.xdist_group("one")
@pytest.mark.parametrize("n", range(4))
def test_group(n):
    (here / ("worker-" + os.environ.get("PYTEST_XDIST_WORKER", "none"))).touch()
"""


WAIT = """
def test_wait():
    import time
    (here / "waiting").touch()
    time.sleep(60)
"""
# Which servers run below this process when the tests are over, before the plugin stops its own.
TRACE = """
from pathlib import Path
from waiting import guards
def pytest_sessionfinish():
    Path(__file__).with_name("trace").write_text(str(guards()))
"""


@pytest.fixture
def inner(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A run with this plugin and no other, in a place without Java and with nothing set."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p quiesce_pytest")
    for name in list(os.environ):
        if name.startswith(("QUIESCE_TEST_", "PYTEST_XDIST_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("JAVA_HOME", "/no/such/java")
    return pytester


def test_pure_tests_start_no_server(inner: pytest.Pytester) -> None:
    inner.makepyfile("def test_pure(): pass")
    before = str(guards())
    inner.makeconftest(TRACE)
    inner.runpytest_inprocess().assert_outcomes(passed=1)
    assert (inner.path / "trace").read_text() == before


def test_what_could_not_run_is_said_in_one_line(inner: pytest.Pytester) -> None:
    inner.makepyfile(test_some=ONE_OF_EACH)
    result = inner.runpytest_inprocess()
    result.assert_outcomes(passed=1, skipped=3)
    lines = [line for line in result.outlines if "COULD NOT RUN" in line]
    assert lines == [
        "COULD NOT RUN: 3 tests in test_some.py need Apache Kafka. Java is not here: install Java 17 or newer, "
        "and Maven, which fetches Kafka's jars"
    ]
    result.stdout.fnmatch_lines("servers: PostgreSQL 18.* (started by the tests), no Apache Kafka")


@pytest.mark.parametrize(
    ("required", "message"),
    [
        ("postgres,kafka", "*QUIESCE_TEST_REQUIRE names kafka, and it is missing. Java is not here: *"),
        ("oracle", "*QUIESCE_TEST_REQUIRE got 'oracle': it takes postgres, kafka, tansu*"),
    ],
    ids=["missing", "unknown"],
)
def test_a_required_part_that_is_missing_fails_the_run(
    inner: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, required: str, message: str
) -> None:
    monkeypatch.setenv("QUIESCE_TEST_REQUIRE", required)
    inner.makepyfile(ONE_OF_EACH)
    result = inner.runpytest_inprocess()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(message)
    assert "passed" not in result.stdout.str()


def test_namespaces_are_a_part_that_can_be_required(inner: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIESCE_TEST_REQUIRE", "namespaces")
    monkeypatch.setenv("PATH", "/no/programs/here")
    inner.makepyfile("import pytest\n@pytest.mark.needs('namespaces')\ndef test_it(): pass")
    result = inner.runpytest_inprocess()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines("*names namespaces, and it is missing. unshare(1) is not installed*")


def test_an_unknown_part_in_a_mark_is_refused(inner: pytest.Pytester) -> None:
    inner.makepyfile("import pytest\n@pytest.mark.needs('oracle')\ndef test_it(): pass")
    result = inner.runpytest_inprocess()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines("*test_it needs oracle: it takes postgres, kafka, tansu*")


def test_addresses_from_the_environment_win(
    inner: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, postgres: PostgresAddress, kafka: str
) -> None:
    monkeypatch.setenv("QUIESCE_TEST_POSTGRES_DSN", postgres.dsn())
    monkeypatch.setenv("QUIESCE_TEST_KAFKA_BOOTSTRAP", kafka)
    monkeypatch.setenv("QUIESCE_TEST_REQUIRE", "postgres,kafka")
    inner.makepyfile(
        f"""
        import pytest
        from confluent_kafka.admin import AdminClient

        names = []

        @pytest.fixture(scope="session")
        def database_template_sql():
            return ["CREATE TABLE from_template (n int)", "INSERT INTO from_template VALUES (1); SELECT 1"]

        @pytest.mark.parametrize("n", range(2))
        def test_database(n, postgres, database):
            assert postgres.dsn() == {postgres.dsn()!r}
            name = database.rpartition("/")[2]
            assert postgres.execute("INSERT INTO from_template VALUES (2) RETURNING n", name) == "2"
            assert postgres.execute("SELECT count(*) FROM from_template", name) == "2"
            names.append(name)

        def test_databases_are_gone_after_their_tests(postgres):
            assert len(set(names)) == 2
            databases = postgres.execute("SELECT datname FROM pg_database").splitlines()
            assert not set(names) & set(databases)

        def test_topic(topic, kafka, group):
            assert kafka == {kafka!r}
            name = topic("orders", partitions=2, **{{"max.message.bytes": "1000"}})
            admin = AdminClient({{"bootstrap.servers": kafka, "log_level": 0}})
            assert len(admin.list_topics(name, timeout=5).topics[name].partitions) == 2
        """
    )
    before = str(guards())
    inner.makeconftest(TRACE)
    result = inner.runpytest_inprocess()
    result.assert_outcomes(passed=4)
    assert (inner.path / "trace").read_text() == before
    result.stdout.fnmatch_lines(
        f"servers: PostgreSQL 18.* (QUIESCE_TEST_POSTGRES_DSN), Apache Kafka at {kafka} (QUIESCE_TEST_KAFKA_BOOTSTRAP)"
    )


def test_a_server_that_does_not_answer_is_said_in_the_header(
    inner: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUIESCE_TEST_POSTGRES_DSN", "postgresql://me:hidden@127.0.0.1:1/x")
    inner.makepyfile("def test_it(): pass")
    result = inner.runpytest_inprocess()
    result.stdout.fnmatch_lines("servers: PostgreSQL of QUIESCE_TEST_POSTGRES_DSN does not answer: *refused*")
    assert "hidden" not in result.stdout.str()


@pytest.mark.needs("postgres")
def test_workers_share_the_controllers_server_and_it_ends_with_the_run(inner: pytest.Pytester) -> None:
    inner.makepyfile(WHERE)
    inner.makeconftest("import sys; assert 'quiesce' not in sys.modules, 'loading the plugin imported the package'")
    inner.runpytest_subprocess("-p", "xdist", "-n", "2", "--dist", "loadgroup").assert_outcomes(passed=6)
    [found] = {(inner.path / f"where-{n}").read_text() for n in range(2)}
    pid, data = found.split()
    assert all_gone([int(pid)])
    assert not Path(data).exists()
    # Tests with a server of their own rest on this. pytest 9.2.0 with xdist 3.8.0 breaks it, and says nothing.
    assert len(list(inner.path.glob("worker-gw*"))) == 1


@pytest.mark.needs("postgres")
def test_the_server_ends_with_a_run_that_is_interrupted(inner: pytest.Pytester) -> None:
    inner.makepyfile(WHERE + WAIT)
    run = inner.popen([sys.executable, "-m", "pytest"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: (inner.path / "waiting").exists(), within=40.0)
        pid, data = (inner.path / "where-1").read_text().split()
        assert not all_gone([int(pid)])
        run.send_signal(signal.SIGINT)
        assert run.wait(timeout=30.0) == pytest.ExitCode.INTERRUPTED
    finally:
        run.kill()
        run.wait(timeout=10.0)
    assert all_gone([int(pid)])
    assert not Path(data).exists()
