"""One connection and one transaction for all that a request writes. It ends before the response leaves."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Literal, Protocol

Isolation = Literal["read_committed", "repeatable_read", "serializable"]


class KeyTransaction(Protocol):
    """What a driver gives: a connection of its pool, with one transaction on it. `begin`, then one of `commit` and
    `roll_back`; both give the connection back, whatever happens."""

    async def begin(self, within: float, isolation: Isolation | None) -> None:
        """Raises:
        Unavailable: no connection was free within so many seconds, or the database cannot be reached.
        """
        ...

    async def row(self, sql: str, *values: Any) -> Mapping[str, Any] | None:
        """The one row of a statement with `$1`-style placeholders; None if there is none.

        Raises:
            SchemaMissing: the table of the keys is not there.
            TransactionConflict: another transaction was in the way.
            Unavailable: the connection was lost.
        """
        ...

    def savepoint(self) -> AbstractAsyncContextManager[Any]:
        """What the handler writes by: a connection or a session, with a savepoint around the block."""
        ...

    async def commit(self) -> None:
        """Raises: as `row`, and whatever else the database says to it."""
        ...

    async def roll_back(self) -> None:
        """Never raises, and does nothing where there is nothing to do."""
        ...


class RequestTransaction:
    """A driver's transaction, and what the handler has done in it so far."""

    def __init__(self, made: KeyTransaction, isolation: Isolation | None = None) -> None:
        self._made = made
        self._isolation = isolation
        self.begun = False
        self.open = False
        """Whether the handler is inside a block."""
        self.effect = False
        """Whether a block has ended well."""
        self.over = False

    async def begin(self, within: float) -> None:
        try:
            await self._made.begin(within, self._isolation)
        except BaseException:
            await self._made.roll_back()
            raise
        self.begun = True

    async def row(self, sql: str, *values: Any) -> Mapping[str, Any] | None:
        return await self._made.row(sql, *values)

    @asynccontextmanager
    async def block(self) -> AsyncIterator[Any]:
        """One block of the handler. It takes back its own writes if it raises, and no others."""
        if self.over:
            raise RuntimeError("this request is over, and so is its transaction")
        if self.open:
            raise RuntimeError("one block of this request's transaction is open already; blocks do not nest")
        self.open = True
        try:
            async with self._made.savepoint() as connection:
                yield connection
            self.effect = True
        finally:
            self.open = False

    async def commit(self) -> None:
        self.over = True
        try:
            await self._made.commit()
        except BaseException:
            await self._made.roll_back()
            raise

    async def roll_back(self) -> None:
        self.over = True
        if self.begun:
            await self._made.roll_back()


MakeTransaction = Callable[[], KeyTransaction]
