"""Real servers for tests: the pytest plugin. Switch it on with `pytest_plugins = ["quiesce_pytest"]` in a conftest.

One PostgreSQL and one Apache Kafka serve the whole run. Under xdist the controller starts both while the
workers collect; a run in one process starts each when the first test asks for it. A test gets what is its
own: a database (`database`), topics (`topic`), a group (`group`), and a whole server where it stops one
(`own_postgres`, `own_kafka`; give such tests an `xdist_group`).

- `QUIESCE_TEST_POSTGRES_DSN` and `QUIESCE_TEST_KAFKA_BOOTSTRAP` name servers to use in place of ours.
- `QUIESCE_TEST_REQUIRE=postgres,kafka` (it takes `tansu`, `pgbouncer` and `namespaces` too) ends the run at once,
  as failed, when one of these cannot be had.
- Without it, the tests that need a missing part (by fixture or by the mark `needs("kafka")`) are skipped, and the
  summary says in one line which and how to get the part.

This module is outside the package and imports it only where it is used, so that loading pytest does not.
"""

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import pytest

if TYPE_CHECKING:
    from quiesce.testing.kafka import LocalKafka
    from quiesce.testing.postgres import LocalPostgres
    from quiesce.testing.postgres_address import PostgresAddress
    from quiesce.testing.shared_servers import SharedAddresses, SharedServers

Server = TypeVar("Server", "LocalPostgres", "LocalKafka")
_SERVERS: "pytest.StashKey[SharedServers | SharedAddresses]" = pytest.StashKey()


class MakeTopic(Protocol):
    """What the fixture `topic` gives: creates a topic, returns its unique name. `config` takes Kafka's names."""

    def __call__(self, name_prefix: str = "t", partitions: int = 3, **config: str) -> str: ...


def _needed(item: pytest.Item) -> set[str]:
    """The parts that a test needs, by its fixtures and by the mark `needs`."""
    from quiesce.errors import SettingsError
    from quiesce.testing.needs import needed

    marked = {part for mark in item.iter_markers("needs") for part in mark.args}
    try:
        return needed(item.nodeid, getattr(item, "fixturenames", ()), marked)
    except SettingsError as error:
        raise pytest.UsageError(str(error)) from error


def _starting(server: "Callable[..., Server]") -> "Iterator[Callable[..., Server]]":
    """Gives what starts servers with options of their own, and closes them when the test is over."""
    started: list[Server] = []

    def start(**options: Any) -> Server:
        started.append(server(**options))
        return started[-1].start()

    yield start
    for one in started:
        one.close()


def _address(config: pytest.Config, part: str) -> str:
    from quiesce.errors import StartError

    try:
        return config.stash[_SERVERS].address(part)
    except StartError as error:
        pytest.fail(str(error), pytrace=False)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(part): needs postgres, kafka, tansu, pgbouncer or namespaces to run")


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    try:
        from quiesce.errors import QuiesceError
        from quiesce.testing.needs import refuse_missing
        from quiesce.testing.shared_servers import SharedAddresses, SharedServers
    except ImportError as error:
        raise pytest.UsageError(f"the servers for the tests cannot be started: {error}") from error

    handed = getattr(session.config, "workerinput", {}).get("quiesce_servers")
    if handed:
        session.config.stash[_SERVERS] = SharedAddresses(Path(handed["answers"]), handed["missing"])
    else:
        servers = SharedServers()
        session.config.stash[_SERVERS] = servers
        try:
            refuse_missing(servers.missing)
        except QuiesceError as error:
            raise pytest.UsageError(str(error)) from error


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """In xdist's controller, before a worker starts."""
    from quiesce.testing.shared_servers import ADDRESS_VARIABLES

    servers = node.config.stash[_SERVERS]
    servers.start(*ADDRESS_VARIABLES)
    node.workerinput["quiesce_servers"] = {"answers": str(servers.answers), "missing": servers.missing}


def pytest_report_header(config: pytest.Config) -> str | None:
    from quiesce.testing.shared_servers import SharedServers

    servers = config.stash[_SERVERS]
    return f"servers: {servers.described()}" if isinstance(servers, SharedServers) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    from quiesce.testing.needs import skip_reason

    missing = config.stash[_SERVERS].missing
    for item in items:
        if absent := _needed(item) & set(missing):
            item.add_marker(pytest.mark.skip(reason=skip_reason(absent)))


def pytest_collection_finish(session: pytest.Session) -> None:
    """In a run of one process: start what the selected tests share, side by side and before the first of them.

    Not beside the tests: they may change the environment, and that is of this process.
    """
    from quiesce.testing.shared_servers import ADDRESS_VARIABLES, SharedServers

    servers = session.config.stash[_SERVERS]
    if isinstance(servers, SharedServers) and not session.config.option.collectonly:
        used = {name for item in session.items for name in getattr(item, "fixturenames", ())}
        servers.start(*(part for part in ADDRESS_VARIABLES if part in used))  # fixtures are named like parts
        servers.wait()


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    from quiesce.testing.needs import could_not_run

    skipped = [
        (report.nodeid.partition("::")[0], report.longrepr[2])
        for report in terminalreporter.stats.get("skipped", [])
        if isinstance(report.longrepr, tuple)
    ]
    if line := could_not_run(skipped, config.stash[_SERVERS].missing):
        terminalreporter.write_line(line, yellow=True, bold=True)


def pytest_unconfigure(config: pytest.Config) -> None:
    if _SERVERS not in config.stash:
        return  # the run ended before it had a session
    from quiesce.testing.shared_servers import SharedServers

    servers = config.stash[_SERVERS]
    if isinstance(servers, SharedServers):
        servers.stop_all()


@pytest.fixture(scope="session")
def postgres(request: pytest.FixtureRequest) -> "PostgresAddress":
    """The shared PostgreSQL server: `.dsn(database)`, `.create_database(name)`, `.execute(sql)`."""
    from quiesce.testing.postgres_address import PostgresAddress

    return PostgresAddress(_address(request.config, "postgres"))


@pytest.fixture(scope="session")
def database_template_sql() -> list[str]:
    """SQL that every test's database has been through. A conftest overrides it."""
    return []


@pytest.fixture(scope="session")
def database_template(postgres: "PostgresAddress", database_template_sql: list[str]) -> Iterator[str]:
    """The name of the database that every `database` is a copy of."""
    name = f"quiesce_template_{uuid.uuid4().hex[:12]}"
    postgres.create_database(name)
    for sql in database_template_sql:
        postgres.execute(sql, name)
    yield name
    postgres.drop_database(name)


@pytest.fixture
def database(postgres: "PostgresAddress", database_template: str) -> Iterator[str]:
    """The DSN of a database that only this test has. Dropped afterwards, with what is still connected to it."""
    name = f"quiesce_test_{uuid.uuid4().hex[:12]}"
    yield postgres.create_database(name, database_template)
    postgres.drop_database(name)


@pytest.fixture
def own_postgres() -> "Iterator[Callable[..., LocalPostgres]]":
    """Starts a PostgreSQL server that the test may stop: takes what `LocalPostgres` takes. Closed afterwards."""
    from quiesce.testing.postgres import LocalPostgres

    yield from _starting(LocalPostgres)


@pytest.fixture(scope="session")
def kafka(request: pytest.FixtureRequest) -> str:
    """The shared broker's address, for `bootstrap.servers`."""
    return _address(request.config, "kafka")


@pytest.fixture
def topic(kafka: str) -> Iterator[MakeTopic]:
    """Creates topics with names of their own on the shared broker."""
    from quiesce.testing.kafka_address import KafkaAddress
    from quiesce.testing.shared_servers import ADDRESS_VARIABLES

    broker = KafkaAddress(kafka)
    created: list[str] = []

    def create(name_prefix: str = "t", partitions: int = 3, **config: str) -> str:
        name = f"{name_prefix}-{uuid.uuid4().hex[:12]}"
        broker.create_topic(name, partitions, config)
        created.append(name)
        return name

    yield create
    if os.environ.get(ADDRESS_VARIABLES["kafka"]):  # a broker of ours is thrown away as a whole
        for name in created:
            broker.delete_topic(name)


@pytest.fixture
def group() -> str:
    """A consumer group id that only this test has."""
    return f"group-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def own_kafka() -> "Iterator[Callable[..., LocalKafka]]":
    """Starts a Kafka broker that the test may stop: takes what `LocalKafka` takes. Closed afterwards."""
    from quiesce.testing.kafka import LocalKafka

    yield from _starting(LocalKafka)


@pytest.fixture(scope="session")
def tansu() -> Iterator[str]:
    """The address of an embedded broker of this process, for `bootstrap.servers`."""
    from quiesce.testing.tansu import LocalTansu

    with LocalTansu() as broker:
        yield broker.bootstrap
