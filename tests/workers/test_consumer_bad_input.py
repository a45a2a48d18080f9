"""Records that no handler can take: each has a policy, the next one is handled, and the message says where it lies."""

import asyncio
from typing import Any

import pytest
from scripted_asides import Kept
from scripted_handler import run
from scripted_source import MemorySource, record

from quiesce.errors import BadRecord, SettingsError, Unavailable
from quiesce.inbox.events import RecordSkipped
from quiesce.inbox.record import Record, TopicPartition
from quiesce.testing import virtual_time
from quiesce.workers import BadInput, Consumer, batches, by_type, json_value

ZERO = TopicPartition("products", 0)


def value(offset: int, value: bytes | None, key: bytes = b"k", **headers: bytes) -> Record:
    return Record("products", 0, offset, key, value, tuple(headers.items()))


MIXED = [
    value(0, b'{"n": 0}', b"a", id=b"1", type=b"T"),
    value(1, b"\xff{", b"b", id=b"2", type=b"T"),
    value(2, None, b"c", id=b"3", type=b"T"),
    value(3, b'{"n": 3}', b"d" * 9000, id=b"4", type=b"T"),
    value(4, b'{"n": 4}', b"e", type=b"T"),
    value(5, b'{"n": 5}', b"f", id=b"6", type=b"Other"),
    value(6, b'{"n": 6}', b"g", id=b"7", type=b"T"),
]
CODES = {1: "undecodable", 3: "key_too_large", 4: "no_event_id", 5: "unknown_type"}


class Taken:
    def __init__(self) -> None:
        self.values: dict[int, Any] = {}

    async def __call__(self, record: Record, value: Any) -> None:
        self.values[record.offset] = value


@pytest.mark.parametrize("in_batches", [False, True])
def test_K22_each_kind_of_bad_input_is_set_aside_with_its_reason_and_null_is_a_value(in_batches: bool) -> None:
    async def main() -> None:
        source, taken, dead = MemorySource(MIXED), Taken(), Kept()

        async def handle_all(records: list[Record], values: list[Any]) -> None:
            assert len(records) == len(values)
            for one, decoded in zip(records, values, strict=True):
                await taken(one, decoded)

        handlers: Any = batches(handle_all) if in_batches else by_type({"T": taken})
        consumer = Consumer(
            source, handlers, decode=json_value, dead_letters=dead, bad_input=BadInput(needs_event_id=True)
        )
        await run(consumer, stop_at=5.0)
        expected = {**CODES} if not in_batches else {k: v for k, v in CODES.items() if k != 5}
        assert {offset: reason.code for offset, reason in dead.records} == expected
        assert all(f"products[0]@{o}" in r.message for o, r in dead.records if r.code != "undecodable")
        assert taken.values[2] is None
        assert set(taken.values) == set(range(7)) - set(expected)
        assert source.committed == {ZERO: 7}

    virtual_time.run(main())


def test_K22_skipped_ones_are_counted_and_the_next_is_handled(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        source, taken = MemorySource(MIXED), Taken()
        policies = BadInput("skip", "skip", "skip", "skip", needs_event_id=True)
        consumer = Consumer(source, by_type({"T": taken}), decode=json_value, bad_input=policies)
        stop = await run(consumer, stop_at=5.0)
        assert sorted(told.reason for told in stop.told(RecordSkipped)) == sorted(CODES.values())
        assert set(taken.values) == {0, 2, 6}
        assert source.committed == {ZERO: 7}

    virtual_time.run(main())
    for offset in CODES:
        assert f"products[0]@{offset}" in caplog.text


def test_K22_where_there_is_nowhere_to_put_it_its_key_waits_and_nothing_is_lost() -> None:
    async def main() -> None:
        source, taken = MemorySource([*MIXED, value(7, b"7", b"b", id=b"8", type=b"T")]), Taken()
        consumer = Consumer(source, by_type({"T": taken}), decode=json_value)
        stop = await run(consumer, stop_at=100.0)
        assert set(taken.values) == {0, 2, 4, 6}
        assert source.committed == {ZERO: 1}
        assert not stop.abandoned

    virtual_time.run(main())


def test_K22_where_the_policy_is_to_stop_what_had_begun_is_committed_and_the_error_says_where() -> None:
    async def main() -> None:
        source, taken = MemorySource(MIXED), Taken()
        consumer = Consumer(source, by_type({"T": taken}), decode=json_value, bad_input=BadInput(undecodable="stop"))
        with pytest.raises(BadRecord, match=r"products\[0\]@1: undecodable"):
            await run(consumer, stop_at=100.0)
        assert source.committed == {ZERO: 1}
        assert (1, ZERO) in source.done_with
        # Begun again by its service, it is where it was.
        with pytest.raises(BadRecord):
            await run(consumer, stop_at=source.now() + 100.0)
        assert source.committed == {ZERO: 1}

    virtual_time.run(main())


def test_a_handler_may_say_itself_that_a_record_is_bad_input() -> None:
    class NoId(Exception):
        reason_code = "no_event_id"

    async def main() -> None:
        source, dead = MemorySource([record(n, key=b"k%d" % n) for n in range(6)]), Kept()

        async def handle(records: list[Record]) -> None:
            await asyncio.sleep(0.01)
            if any(one.offset == 3 for one in records):
                raise NoId("no id")

        await run(Consumer(source, batches(handle), dead_letters=dead), stop_at=5.0)
        assert [(offset, reason.code) for offset, reason in dead.records] == [(3, "no_event_id")]
        assert source.committed == {ZERO: 6}

    virtual_time.run(main())


def test_a_schema_registry_that_is_away_is_no_fault_of_the_record() -> None:
    async def main() -> None:
        source, taken, dead = MemorySource(MIXED[:1]), Taken(), Kept()

        def decode(record: Record) -> Any:
            if source.now() < 50.0:
                raise Unavailable("the registry is away")
            return json_value(record)

        await run(Consumer(source, taken, decode=decode, dead_letters=dead), stop_at=100.0)
        assert taken.values == {0: {"n": 0}}
        assert not dead.records

    virtual_time.run(main())


def test_policies_that_cannot_be_are_refused() -> None:
    with pytest.raises(SettingsError, match="undecodable"):
        BadInput(undecodable="ignore")  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="dead_letters="):
        Consumer(MemorySource(), Taken(), bad_input=BadInput(undecodable="dead_letter"))
