"""How often a handler of records goes to the database: what it costs a record is mostly round trips."""

import contextlib
from typing import Any

import asyncpg
import pytest

from quiesce.errors import TransactionAborted
from quiesce.inbox.record import Record
from quiesce.postgres import once, once_batch
from quiesce.postgres.commit_answer import CommitAnswer

pytestmark = pytest.mark.needs("postgres")


def record(number: int) -> Record:
    return Record("orders", 0, number, b"k", b"v", (("id", str(number).encode()),), 0.0)


@pytest.mark.parametrize("batch", [False, True])
async def test_a_record_or_a_batch_takes_one_statement_beside_its_transaction_and_its_handlers(
    database: str, batch: bool
) -> None:
    sent: list[str] = []

    async def handler(given: Any, connection: Any) -> None:
        await connection.execute("SELECT 'of the handler'")

    async def listen(connection: Any) -> None:
        connection.add_query_logger(lambda query: sent.append(query.query.split()[0].strip(";")))

    async with asyncpg.create_pool(database, min_size=0, max_size=1, timeout=20, setup=listen) as pool:
        handle = once_batch(pool, "c", handler) if batch else once(pool, "c", handler)
        await handle([record(1), record(2)] if batch else record(1))
        mark = "SELECT" if batch else "INSERT"
        # Nothing asks whether the transaction is well before it is committed.
        assert sent[:4] == ["BEGIN", mark, "SELECT", "COMMIT"]


@pytest.mark.parametrize("heard", [True, False])
async def test_K28_an_aborted_transaction_is_noticed_also_where_asyncpg_hides_what_its_commit_came_to(
    database: str, heard: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def handler(given: Record, connection: Any) -> None:
        with contextlib.suppress(asyncpg.DivisionByZeroError):
            await connection.execute("SELECT 1 / 0")

    if not heard:
        # As if another version of asyncpg did not execute its commit by the connection.
        monkeypatch.setattr(CommitAnswer, "heard", False)
        monkeypatch.setattr(CommitAnswer, "require_commit", lambda answer: None)
    async with asyncpg.create_pool(database, min_size=0, max_size=1, timeout=20) as pool:
        with pytest.raises(TransactionAborted):
            await once(pool, "c", handler)(record(1))
        assert await pool.fetchval("SELECT count(*) FROM inbox_entry") == 0
