"""Logs of a consumer show no key, no value, and no text of an exception: it may hold what was in the record."""

import json
import logging
from typing import Any

import pytest
from scripted_asides import Kept
from scripted_handler import EVERY_HALF_SECOND, run
from scripted_source import MemorySource

from quiesce.errors import BadRecord, RecordFailed
from quiesce.inbox.record import Record
from quiesce.testing import virtual_time
from quiesce.workers import BadInput, Consumer, Retries, batches

SECRET = "DE89 jane doe"


class RowExists(Exception):
    """As a driver raises it: the row that was there is in its text."""

    sqlstate = "23505"


def refused(record: Record) -> Any:
    raise ValueError(f"input should be an integer, input_value={json.loads(record.value or b'')}")


async def fails(record: Record, *_: Any) -> None:
    raise RowExists(f"Key (iban)=({json.loads(record.value or b'')}) already exists.")


async def fails_together(records: list[Record]) -> None:
    await fails(records[0])


async def names_it(records: list[Record]) -> None:
    raise RecordFailed(records[0]) from RowExists(SECRET)


def records() -> list[Record]:
    return [Record("p", 0, n, SECRET.encode(), json.dumps(SECRET).encode()) for n in range(2)]


@pytest.mark.parametrize("level", [logging.INFO, logging.DEBUG])
def test_the_text_of_an_exception_is_logged_at_debug_alone(caplog: pytest.LogCaptureFixture, level: int) -> None:
    terms: dict[str, Any] = {"retries": Retries(attempts=2, backoff=EVERY_HALF_SECOND), "dead_letters": Kept()}

    async def main() -> None:
        together: dict[str, Any] = {"batch": 10}
        cases: tuple[tuple[Any, dict[str, Any]], ...] = (
            (fails, {}),
            (fails, {"decode": refused}),
            (batches(fails_together), together),
        )
        for handler, more in (*cases, (batches(names_it), together)):
            source = MemorySource(records())
            await run(Consumer(source, handler, **terms, **more), stop_at=source.now() + 30.0)

    with caplog.at_level(level, "quiesce.workers"):
        virtual_time.run(main())
    assert (SECRET in caplog.text) is (level == logging.DEBUG)
    for said in ("RowExists 23505 at test_what_is_logged.py:", "in fails", "ValueError at test_what_is_logged.py:"):
        assert said in caplog.text, "who has only this must find the place"


def test_what_the_record_lacks_is_said_in_our_words(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        consumer = Consumer(MemorySource(records()), fails, bad_input=BadInput(no_event_id="stop", needs_event_id=True))
        with pytest.raises(BadRecord, match="p\\[0\\]@0 has no event id"):
            await run(consumer, stop_at=5.0)

    virtual_time.run(main())
    assert "p[0]@0 has no event id" in caplog.text
