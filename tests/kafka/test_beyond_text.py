"""What is done behind a committed offset, as text: what was written is read, and nothing else is believed."""

import base64
import random
import zlib
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiesce.inbox.beyond import Beyond
from quiesce.kafka.beyond_text import LONGEST, Where, read, written

HERE = Where("c", "g", "t", 0)


def of(base: int, done: Iterable[int]) -> Beyond:
    done = set(done)
    end = max(done, default=base) + 1
    return Beyond.all_but(base, end, set(range(base, end)) - done)


@given(
    st.integers(0, 2**62),
    st.sets(st.integers(1, 5000), min_size=1),
    st.none() | st.integers(0, 2**31 - 1),
    st.none() | st.text(max_size=30),
    st.none() | st.integers(0, 2**32 - 1),
)
def test_what_was_written_is_read(
    offset: int, done: set[int], epoch: int | None, cluster: str | None, held: int | None
) -> None:
    beyond, here = replace(of(offset, {offset + one for one in done}), held=held), Where(cluster, "g", "t", 3)
    text = written(beyond, here, epoch)
    assert len(text) <= LONGEST
    assert read(text, offset, here) == (beyond, epoch)
    assert read(text, offset + 1, here) is None, "it belongs to another offset"
    for elsewhere in ({"cluster": "other"}, {"group": "other"}, {"topic": "other"}, {"partition": 4}):
        assert read(text, offset, replace(here, **elsewhere)) is None


def test_gaps_between_offsets_cost_nothing() -> None:
    beyond = Beyond.all_but(5, 2**61, [5, 2**60])
    text = written(beyond, HERE, 0)
    assert len(text) < 80
    assert read(text, 5, HERE) == (beyond, 0)


def test_nothing_done_is_no_text() -> None:
    assert written(Beyond(5), HERE, 1) == ""
    assert read("", 5, HERE) is None
    assert read(None, 5, HERE) is None


def test_any_order_of_20_000_offsets_has_room_and_of_more_the_first_are_kept() -> None:
    chance = random.Random(1)
    beyond = of(10**12, {10**12 + n for n in range(1, 20_000) if chance.random() < 0.5})
    assert read(written(beyond, HERE, 2**31 - 1), 10**12, HERE) == (beyond, 2**31 - 1)
    beyond = of(7, {7 + n for n in range(1, 60_000) if chance.random() < 0.5})
    text = written(beyond, HERE, 0)
    assert len(text) <= LONGEST
    found = read(text, 7, HERE)
    assert found is not None
    assert found[0] == beyond.before(found[0].end)
    assert found[0].end > 10_000


GOOD = written(of(7, [8, 10]), HERE, 3)


@pytest.mark.parametrize(
    "text",
    [
        "somebody else's note",
        GOOD.replace("quiesce1", "quiesce2"),
        GOOD[:-3],
        GOOD + " more",
        GOOD.replace(" 3 ", " three "),
        GOOD.rsplit(" ", 1)[0] + " " + base64.b64encode(b"not deflated").decode(),
        GOOD.rsplit(" ", 1)[0] + " *",
        "\x00",
    ],
)
def test_what_others_have_written_means_nothing(text: str) -> None:
    assert read(GOOD, 7, HERE) == (of(7, [8, 10]), 3)
    assert read(text, 7, HERE) is None


def test_little_text_cannot_become_much() -> None:
    bomb = base64.b64encode(zlib.compress(b"\x01" * 100_000_000, 9)).decode()
    found = read(f"{GOOD.rsplit(' ', 1)[0]} {bomb}", 7, HERE)
    assert found is not None
    assert len(found[0].runs) == 500_000
    bomb = base64.b64encode(zlib.compress(b"\xff" * 100_000_000, 9)).decode()
    assert read(f"{GOOD.rsplit(' ', 1)[0]} {bomb}", 7, HERE) is None
