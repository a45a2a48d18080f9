"""`enqueue` on a session: what waits in it is written, and locked, before the event gets its place."""

from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from quiesce.outbox import OutboxEvent
from quiesce.sqlalchemy import enqueue


class Base(DeclarativeBase):
    pass


class Account(Base):
    __tablename__ = "writer_account"

    id: Mapped[int] = mapped_column(primary_key=True)
    balance: Mapped[int]


@pytest.fixture
def engine(database: str) -> Iterator[sa.Engine]:
    made = sa.create_engine(database.replace("postgresql://", "postgresql+psycopg://"))
    Base.metadata.create_all(made)
    yield made
    made.dispose()


def test_a_pending_change_takes_its_lock_before_the_event_gets_its_place(engine: sa.Engine) -> None:
    with Session(engine) as session, session.begin():
        session.add(Account(id=42, balance=10))
    with Session(engine) as session, session.begin(), session.no_autoflush:
        account = session.get_one(Account, 42)
        account.balance -= 1
        enqueue(session, OutboxEvent("account-events", "42", "Withdrawn"))
        with engine.connect() as beside, pytest.raises(sa.exc.OperationalError, match="lock"):
            beside.execute(sa.text("SELECT 1 FROM writer_account WHERE id = 42 FOR UPDATE NOWAIT"))


def test_the_data_and_the_event_are_committed_together_or_not_at_all(engine: sa.Engine) -> None:
    def fails() -> None:
        with Session(engine) as session, session.begin():
            session.add(Account(id=1, balance=1))
            enqueue(session, OutboxEvent("account-events", "1", "Opened"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    with Session(engine) as session, session.begin():
        session.add(Account(id=2, balance=1))
        enqueue(session, OutboxEvent("account-events", "2", "Opened"))
    with engine.connect() as connection:
        assert connection.execute(sa.text("SELECT id FROM writer_account")).scalars().all() == [2]
        assert connection.execute(sa.text("SELECT aggregate_id FROM outbox_event")).scalars().all() == ["2"]
