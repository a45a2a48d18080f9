"""Ids of events begin with the time, so that new ones stand beside each other in an index."""

import time
from uuid import RFC_4122, UUID

import pytest

from quiesce.event_ids import new_event_id
from quiesce.outbox.event import OutboxEvent


def at(monkeypatch: pytest.MonkeyPatch, nanoseconds: int) -> UUID:
    monkeypatch.setattr(time, "time_ns", lambda: nanoseconds)
    return new_event_id()


def test_an_id_is_a_uuid_of_version_7_with_the_time_in_front(monkeypatch: pytest.MonkeyPatch) -> None:
    one = at(monkeypatch, 0x0192_ABCD_EF01 * 1_000_000 + 500_000)
    assert (one.version, one.variant) == (7, RFC_4122)
    assert str(one).startswith("0192abcd-ef01-7800-")
    assert UUID(str(one)) == one


def test_later_ids_are_larger_down_to_the_microsecond(monkeypatch: pytest.MonkeyPatch) -> None:
    began = 1_900_000_000_123_000_000
    ids = [at(monkeypatch, began + 1000 * microsecond) for microsecond in range(3000)]
    assert ids == sorted(ids)


def test_ids_of_one_instant_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 1_900_000_000_000_000_000)
    assert len({new_event_id() for _ in range(10_000)}) == 10_000


def test_an_event_without_an_id_gets_one() -> None:
    assert OutboxEvent("t", "k", "T").id.version == 7
