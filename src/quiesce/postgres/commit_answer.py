"""What the server answers to the commit of a transaction, which asyncpg drops: `ROLLBACK`, if it was aborted."""

from typing import Any

from quiesce.errors import TransactionAborted
from quiesce.inbox.once import SWALLOWED


class CommitAnswer:
    """Stands between a transaction of asyncpg and its connection from before its start, and keeps the last answer.

    A handler that keeps an error of the database to itself leaves an aborted transaction. Asyncpg hands out
    neither the transaction's state nor this answer, and to ask costs a round trip a record.
    """

    __slots__ = ("_answer", "_connection")

    def __init__(self, transaction: Any) -> None:
        object.__setattr__(self, "_connection", transaction._connection)
        object.__setattr__(self, "_answer", "")
        transaction._connection = self

    @property
    def heard(self) -> bool:
        """Whether the answer to the transaction's `BEGIN` came by here, and so will that to its commit."""
        answer: str = self._answer
        return answer == "BEGIN"

    def require_commit(self) -> None:
        """Raises TransactionAborted if the server has answered the commit by a rollback."""
        if self._answer == "ROLLBACK":
            raise TransactionAborted(SWALLOWED)

    async def execute(self, query: str) -> str:
        """What the transaction begins and ends by."""
        answer: str = await self._connection.execute(query)
        object.__setattr__(self, "_answer", answer)
        return answer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._connection, name, value)
