"""Why a connection could not be opened: what passes by waiting, and what does not. And no secret in any of it."""

import asyncio
import os
import signal
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from quiesce.errors import QuiesceError, SettingsError, Unavailable
from quiesce.postgres import OutboxRows, connect, open_pool, redact_dsn
from quiesce.postgres.connections import APPLICATION, RELAY, Connector
from quiesce.testing.loopback import free_port
from quiesce.testing.postgres import LocalPostgres
from quiesce.testing.postgres_address import PostgresAddress

Open = Callable[[str], Awaitable[object]]


async def _pool(dsn: str) -> object:
    return await open_pool(dsn, name="db", connect_timeout=1.0).open()


async def _store(dsn: str) -> object:
    return await OutboxRows(dsn, name="db", connect_timeout=1.0).open()


async def _connect(dsn: str) -> object:
    async with connect(dsn, name="db", timeout=1.0) as connection:
        return connection


every_way = pytest.mark.parametrize("way", [_pool, _store, _connect], ids=["pool", "store", "connect"])


async def failure(way: Open, dsn: str) -> QuiesceError:
    with pytest.raises(QuiesceError) as caught:
        await way(dsn)
    told = caught.value
    assert "\n" not in str(told)
    assert told.__cause__ is None
    return told


@every_way
async def test_nobody_listens(way: Open) -> None:
    told = await failure(way, f"postgresql://me:geheim@127.0.0.1:{free_port()}/db")
    assert isinstance(told, Unavailable)
    assert told.retryable
    assert "postgresql://127.0.0.1" in str(told)
    assert "me:" not in str(told), "an answer to readiness shows it to anybody"
    assert "geheim" not in str(told)


@every_way
async def test_nobody_answers(way: Open) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        began = time.monotonic()
        told = await failure(way, f"postgresql://me@127.0.0.1:{silent.getsockname()[1]}/db")
    assert isinstance(told, Unavailable)
    assert "did not answer in time" in str(told)
    assert time.monotonic() - began < 3.0


@every_way
async def test_a_host_without_an_address(way: Open) -> None:
    assert isinstance(await failure(way, "postgresql://me@no-such-host.invalid/db"), Unavailable)


@every_way
async def test_a_database_that_does_not_exist(way: Open, postgres: PostgresAddress) -> None:
    told = await failure(way, postgres.dsn("no_such_database"))
    assert isinstance(told, SettingsError)
    assert "no_such_database" in str(told)


@every_way
async def test_a_user_that_does_not_exist(way: Open, postgres: PostgresAddress) -> None:
    told = await failure(way, postgres.dsn().replace("postgres@", "nobody_at_all:geheim@"))
    assert isinstance(told, SettingsError)
    assert "nobody_at_all" in str(told)
    assert "geheim" not in str(told)


@every_way
@pytest.mark.parametrize(
    "dsn",
    [
        "",
        "geheim",
        "mysql://me:geheim@host/db",
        "postgresql://me:ge/heim@host/db",
        "postgresql://me:geheim@host:port/db",
        "postgresql://me:geheim@127.0.0.1:99999/db",
        "postgresql://me:geheim@host/db?sslmode=geheim",
    ],
)
async def test_a_bad_dsn(way: Open, dsn: str) -> None:
    told = await failure(way, dsn)
    assert isinstance(told, SettingsError)
    assert "takes postgresql://" in str(told)
    assert "heim@" not in str(told)
    if dsn != "geheim" and "sslmode" not in dsn:
        assert "geheim" not in str(told)


@every_way
async def test_no_connection_left(way: Open, bare: str, postgres: PostgresAddress) -> None:
    name = bare.rpartition("/")[2]
    role = f"crowd_{name}"
    postgres.execute(f"CREATE ROLE {role} LOGIN CONNECTION LIMIT 0", name)
    try:
        told = await failure(way, bare.replace("postgres@", f"{role}@"))
        assert isinstance(told, Unavailable)
        assert "too many connections" in str(told)
    finally:
        postgres.execute(f"DROP ROLE {role}", name)


@pytest.mark.xdist_group("a server that shuts down")
async def test_a_wrong_password_and_a_server_that_shuts_down(own_postgres: Callable[..., LocalPostgres]) -> None:
    server = own_postgres()
    server.execute("CREATE ROLE guarded LOGIN PASSWORD 'richtig'")
    rules = Path(server.directory, "data", "pg_hba.conf")
    rules.write_text("host all guarded 127.0.0.1/32 scram-sha-256\n" + rules.read_text())
    server.execute("SELECT pg_reload_conf()")
    dsn = server.dsn().replace("postgres@", "guarded:falsch@")

    async def refused() -> QuiesceError:
        return await failure(_pool, dsn)

    told = await refused()
    assert isinstance(told, SettingsError)
    assert "falsch" not in str(told)
    async with connect(dsn.replace("falsch", "richtig")) as guest:
        assert await guest.fetchval("SELECT current_user") == "guarded"
        # It waits for its guests, and lets nobody in any more.
        os.kill(server.pid, signal.SIGTERM)
        end = time.monotonic() + 3.0
        while isinstance(told := await refused(), SettingsError):
            assert time.monotonic() < end
            await asyncio.sleep(0.01)
        assert isinstance(told, Unavailable)
        assert "shutting down" in str(told)


async def test_our_end_probes_too(postgres: PostgresAddress) -> None:
    for probing in (APPLICATION, RELAY):
        connection = await Connector(probing)(postgres.dsn())
        ours = connection._transport.get_extra_info("socket")  # type: ignore[attr-defined] # there is no other way
        assert ours.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        patience = round(1000 * probing.unacknowledged)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            assert ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == patience
        assert await connection.fetchval("SHOW tcp_user_timeout") == str(patience)
        await connection.close()


def test_a_relay_notices_a_lost_node_within_five_seconds() -> None:
    assert RELAY.idle + RELAY.interval * RELAY.count < 5
    assert RELAY.unacknowledged < 5


async def test_a_pooler_that_refuses_settings_is_got_over(postgres: PostgresAddress) -> None:
    connector = Connector(APPLICATION)
    # A server that does not know one of them says the same as a pooler.
    connector._settings = {**connector._settings, "tcp_no_such_setting": "1"}
    connection = await connector(postgres.dsn(), server_settings={"application_name": "mine"})
    assert await connection.fetchval("SHOW application_name") == "mine"
    await connection.close()
    assert connector._settings == {}


async def test_a_wrong_setting_of_the_users_own_is_told(postgres: PostgresAddress) -> None:
    with pytest.raises(SettingsError, match="no_such_setting"):
        await open_pool(postgres.dsn(), server_settings={"no_such_setting": "1"}).open()


@pytest.mark.parametrize(
    ("dsn", "shown"),
    [
        ("postgresql://me:geheim@host:5432/db", "postgresql://me:***@host:5432/db"),
        ("postgres://me@host/db", "postgres://me@host/db"),
        ("postgres://host/db", "postgres://host/db"),
        ("postgres:///db?host=/run/pg", "postgres:///db?host=/run/pg"),
        ("postgres://me:ge@heim@host/db", "postgres://me:***@host/db"),
        ("postgres://me:ge/heim@host/db", "postgres://me:***@host/db"),
        ("postgres://me:ge?heim@host/db", "postgres://me:***@host/db"),
        ("postgres://me:geheim@one,two/db", "postgres://me:***@one,two/db"),
        ("postgres://host/db?user=me&password=geheim&x=1", "postgres://host/db?user=me&password=***&x=1"),
        ("postgres://host/db?sslpassword=geheim", "postgres://host/db?sslpassword=***"),
        ("host=h user=me password=geheim dbname=db", "host=h user=me password=*** dbname=db"),
        ("host=h password='ge heim' dbname=db", "host=h password=*** dbname=db"),
        ("PASSWORD = geheim", "PASSWORD = ***"),
        ("dbname=x pass=geheim", "dbname=x pass=***"),
        ("me:geheim@h/x", "me:***@h/x"),
        ("//me:geheim@h/x", "//me:***@h/x"),
        ("postgresql:/me:geheim@h/x", "postgresql:***@h/x"),
        ("", ""),
    ],
)
def test_a_dsn_is_shown_without_its_secret(dsn: str, shown: str) -> None:
    assert redact_dsn(dsn) == shown
