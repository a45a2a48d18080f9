"""What is done behind a committed offset, as text: what was written is read, and nothing else is believed."""

import base64
import random
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiesce.inbox.beyond import Beyond
from quiesce.kafka.beyond_text import LONGEST, read, written


@given(
    st.integers(0, 2**62),
    st.sets(st.integers(1, 5000), min_size=1),
    st.none() | st.integers(0, 2**31 - 1),
    st.none() | st.text(max_size=30),
)
def test_what_was_written_is_read(offset: int, done: set[int], epoch: int | None, cluster: str | None) -> None:
    beyond = Beyond(offset, sum(1 << one for one in done))
    text = written(beyond, cluster, epoch)
    assert len(text) <= LONGEST
    assert read(text, offset, cluster) == (beyond, epoch)
    assert read(text, offset + 1, cluster) is None, "it belongs to another offset"
    assert read(text, offset, "another cluster") is None


def test_nothing_done_is_no_text() -> None:
    assert written(Beyond(5), "c", 1) == ""
    assert read("", 5, "c") is None
    assert read(None, 5, "c") is None


def test_any_order_of_20_000_offsets_has_room_and_of_more_the_first_are_kept() -> None:
    chance = random.Random(1)
    beyond = Beyond(10**12, chance.getrandbits(20_000) << 1)
    assert read(written(beyond, "c", 2**31 - 1), 10**12, "c") == (beyond, 2**31 - 1)
    beyond = Beyond(7, chance.getrandbits(60_000) << 1)
    text = written(beyond, "c", 0)
    assert len(text) <= LONGEST
    found = read(text, 7, "c")
    assert found is not None
    assert found[0] == Beyond(7, beyond.bits & ((1 << found[0].bits.bit_length()) - 1))
    assert found[0].bits.bit_length() > 10_000


GOOD = written(Beyond(7, 0b1010), "c", 3)


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
    assert read(GOOD, 7, "c") == (Beyond(7, 0b1010), 3)
    assert read(text, 7, "c") is None


def test_little_text_cannot_become_much() -> None:
    bomb = base64.b64encode(zlib.compress(b"\xff" * 100_000_000, 9)).decode()
    found = read(f"{GOOD.rsplit(' ', 1)[0]} {bomb}", 7, "c")
    assert found is not None
    assert found[0].bits.bit_length() <= 8_000_000
