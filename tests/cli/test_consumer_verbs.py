"""`quiesce consumer`: dead letters on Apache Kafka are listed, shown, sent back and dismissed."""

import asyncio
import json
import re
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any
from uuid import uuid4

import pytest
from broker import committed, records

from quiesce.cli.main import main
from quiesce.inbox.reason import FAILED, UNDECODABLE, Reason
from quiesce.inbox.record import Record, TopicPartition
from quiesce.inbox.redriven import MARK, Offsets, is_mark, mark, take_mark
from quiesce.inbox.retry_headers import origin, redrives
from quiesce.kafka import KafkaDeadLetters, dead_reader
from quiesce.lifecycle.deadline import Deadline
from quiesce_pytest import MakeTopic

Json = dict[str, Any]


@dataclass
class Dead:
    """A dead-letter topic of one partition, and the topic that its letters came from."""

    kafka: str
    source: str
    topic: str
    capsys: pytest.CaptureFixture[str]

    def fill(self, letters: Sequence[tuple[Record, Reason]]) -> None:
        async def write() -> None:
            dead = await KafkaDeadLetters(self.kafka, topic=self.topic, too_large="cut").open()
            for letter, reason in letters:
                await dead.set_aside(letter, reason, Deadline(time.monotonic() + 20))
            await dead.close(Deadline(time.monotonic() + 5))

        asyncio.run(write())

    def letter(self, number: int, key: bytes | None = b"k", *, code: str = FAILED) -> tuple[Record, Reason]:
        headers = (("id", f"event-{number}".encode()), ("type", b"Placed"), ("secret", b"of a customer"))
        record = Record(self.source, 2, number, key, f"value {number}".encode(), headers, 1_700_000_000.0)
        return record, Reason(code, "shop.NoSuchProduct", f"product {number}", 5, "orders")

    def run(self, *argv: str) -> tuple[int, str, str]:
        """Status, output and errors of a verb on this topic."""
        status = main(["consumer", *argv, "--kafka", self.kafka, "--topic", self.topic])
        out, err = self.capsys.readouterr()
        return status, out, err

    def json(self, *argv: str, status: int = 0) -> Json:
        got, out, err = self.run(*argv, "--json")
        assert got == status, err
        answer: Json = json.loads(out)
        return answer

    def waiting(self, *argv: str) -> list[int]:
        return [letter["origin"]["offset"] for letter in self.json("dead", "list", *argv)["letters"]]

    def back(self) -> list[Record]:
        """What stands in the source topic."""
        return records(self.kafka, self.source)


@pytest.fixture
def dead(kafka: str, topic: MakeTopic, capsys: pytest.CaptureFixture[str]) -> Dead:
    return Dead(kafka, topic("orders", partitions=3), topic("orders.dead", partitions=1), capsys)


def test_letters_are_listed_and_what_is_in_them_only_when_asked_for(dead: Dead) -> None:
    assert dead.run("dead", "list")[:2] == (0, "no dead letters wait\n")
    dead.fill([dead.letter(1, b"jane@doe"), dead.letter(2, b"\xff", code=UNDECODABLE), dead.letter(3, None)])
    status, out, _ = dead.run("dead", "list")
    assert status == 0
    assert "jane@doe" not in out
    assert f"#{sha256(b'jane@doe').hexdigest()[:8]}" in out, "as in the consumer's logs"
    assert "jane@doe" not in dead.run("dead", "list", "--json")[1]
    assert "jane@doe" not in dead.run("dead", "show", "--partition", "0", "--offset", "0")[1]
    assert "jane@doe" in dead.run("dead", "list", "--payloads")[1]
    assert dead.json("dead", "list", "--payloads")["letters"][0]["key"] == "jane@doe"
    assert "value 1" not in out
    assert "of a customer" not in out
    assert f"{dead.source}[2]@1" in out
    assert "shop.NoSuchProduct: product 1" in out
    assert "value 1" in dead.run("dead", "list", "--payloads")[1]

    found = dead.json("dead", "list", "--limit", "1")
    assert (found["total"], len(found["letters"])) == (3, 1)
    letter = found["letters"][0]
    assert letter["origin"] == {"topic": dead.source, "partition": 2, "offset": 1}
    assert (letter["reason"], letter["tries"], letter["consumer"], letter["bytes"]) == (FAILED, 5, "orders", 7)
    assert letter["origin_at"] == "2023-11-14T22:13:20+00:00"
    assert "value" not in letter

    shown = dead.json("dead", "show", "--partition", "0", "--offset", "1", "--payloads")
    assert shown["key_base64"] == "/w=="
    assert shown["value"] == "value 2"
    assert {"name": "secret", "value": "of a customer"} in shown["headers"]
    assert "product 3" in dead.run("dead", "show", "--partition", "0", "--offset", "2")[1]
    assert dead.run("dead", "show", "--partition", "0", "--offset", "99")[0] == 78


def test_letters_are_chosen_by_what_matches_all_that_is_given(dead: Dead) -> None:
    dead.fill([dead.letter(1, b"a"), dead.letter(2, b"b", code=UNDECODABLE), dead.letter(3, b"a")])
    assert dead.waiting("--key", "a") == [1, 3]
    assert dead.waiting("--key", "a", "--key", "b", "--reason", UNDECODABLE) == [2]
    assert dead.waiting("--event", "event-3") == [3]
    assert dead.waiting("--partition", "0", "--offset", "0", "--offset", "2") == [1, 3]
    assert dead.waiting("--origin", "elsewhere") == []
    assert dead.waiting("--consumer", "orders") == [1, 2, 3]
    assert dead.waiting("--since", "2024-01-01") == [1, 2, 3]
    assert dead.waiting("--until", "2024-01-01") == []


def test_K34_a_letter_goes_back_as_it_came_and_only_once(dead: Dead) -> None:
    dead.fill([dead.letter(1, b"a"), dead.letter(2, b"b"), dead.letter(3, b"a"), dead.letter(4, None)])
    assert dead.json("redrive", "--key", "a", "--dry-run")["redriven"] == 2
    assert dead.back() == []
    assert dead.json("redrive", "--key", "a") == {
        "redriven": 2,
        "dismissed": 0,
        "left": 2,
        "read_to_end": True,
        "refused": [],
        "dry_run": False,
    }
    back = dead.back()
    assert [(one.partition, one.key, one.value, one.event_id) for one in back] == [
        (2, b"a", b"value 1", "event-1"),
        (2, b"a", b"value 3", "event-3"),
    ]
    assert all(redrives(one) == 1 and origin(one).topic == dead.source for one in back)
    assert [one.headers[:3] for one in back] == [dead.letter(number)[0].headers for number in (1, 3)]
    assert dead.waiting() == [2, 4]
    assert committed(dead.kafka, f"{dead.topic}.redrive", dead.topic, 1) == {TopicPartition(dead.topic, 0): 1}

    # Once more, and in the name of a group that knows nothing of it, as after its offsets have expired.
    assert dead.json("redrive", "--key", "a")["redriven"] == 0
    assert dead.json("redrive", "--key", "a", "--group", f"other-{uuid4().hex}")["redriven"] == 0
    status, out, _ = dead.run("redrive", "--all")
    assert (status, out) == (0, "redriven: 2 letters; 0 wait\n")
    assert [one.value for one in dead.back()] == [b"value 1", b"value 3", b"value 2", b"value 4"]
    assert dead.waiting() == []
    assert dead.waiting("--all") == [1, 2, 3, 4]
    # All is dealt with, the marks included: whoever watches the group's lag sees none.
    (end,) = committed(dead.kafka, f"{dead.topic}.redrive", dead.topic, 1).values()
    assert end == len(records(dead.kafka, dead.topic))
    # A letter that comes later is seen.
    dead.fill([dead.letter(5)])
    assert dead.waiting() == [5]


def test_letters_are_dismissed_without_being_sent(dead: Dead) -> None:
    dead.fill([dead.letter(1), dead.letter(2), dead.letter(3)])
    assert dead.json("redrive", "--event", "event-2", "--dismiss", "--by", "ada")["dismissed"] == 1
    assert dead.waiting() == [1, 3]
    assert dead.back() == []
    (marked,) = (one for one in records(dead.kafka, dead.topic) if is_mark(one))
    assert (marked.header(MARK), marked.header("quiesce-by")) == ("1", "ada")


def test_a_limit_and_a_rate_send_so_many_in_order(dead: Dead) -> None:
    dead.fill([dead.letter(number) for number in range(5)])
    assert dead.json("redrive", "--all", "--limit", "2")["redriven"] == 2
    assert dead.waiting() == [2, 3, 4]
    assert dead.json("redrive", "--all", "--rate", "1000", "--limit", "2")["redriven"] == 2
    assert dead.json("redrive", "--all", "--limit", "2")["redriven"] == 1
    assert [one.value for one in dead.back()] == [f"value {number}".encode() for number in range(5)]
    assert dead.waiting() == []


def test_how_many_wait_is_said_only_of_letters_that_were_looked_at(dead: Dead) -> None:
    dead.fill([dead.letter(number) for number in range(5)])
    assert dead.run("redrive", "--all", "--limit", "2", "--dry-run")[1] == "would redrive 2 letters; at least 3 wait\n"
    assert dead.json("redrive", "--all", "--limit", "2", "--dry-run")["read_to_end"] is False
    assert dead.run("redrive", "--all", "--limit", "5", "--dry-run")[1].endswith("; how many wait is not known\n")
    assert dead.run("redrive", "--event", "event-3", "--limit", "2")[1] == "redriven: 1 letters; 4 wait\n"


def test_letters_go_to_another_topic_and_say_where_they_were_first_read(dead: Dead, topic: MakeTopic) -> None:
    dead.fill([dead.letter(1), dead.letter(2)])
    retry = topic("retry", partitions=2)
    assert dead.json("redrive", "--all", "--to", retry)["redriven"] == 2
    assert dead.back() == []
    found = records(dead.kafka, retry)
    assert [origin(one) for one in found] == [(dead.source, 2, 1), (dead.source, 2, 2)]
    assert dead.run("redrive", "--all", "--to", dead.topic)[0] == 78


def test_what_cannot_go_back_is_named_and_goes_on_waiting(dead: Dead, kafka: str, topic: MakeTopic) -> None:
    small = Dead(kafka, dead.source, topic("small", partitions=1, **{"max.message.bytes": "5000"}), dead.capsys)
    record, reason = small.letter(1)
    large = Record(record.topic, 2, 7, b"k", b"x" * 6000, record.headers, record.timestamp)
    small.fill([(large, reason), small.letter(2)])
    status, out, err = small.run("redrive", "--all")
    assert (status, out) == (1, "redriven: 1 letters; 1 wait\n")
    assert f"offset 0: its value of 6000 bytes had to be left out; all of it stood at {small.source}[2]@7" in err
    assert small.waiting() == [7]
    assert small.json("redrive", "--all", "--dismiss")["dismissed"] == 1


def test_a_topic_that_is_not_there_is_named_and_nothing_is_marked(dead: Dead, kafka: str) -> None:
    gone = Dead(kafka, f"gone-{uuid4().hex[:8]}", dead.topic, dead.capsys)
    gone.fill([gone.letter(1)])
    status, _, err = gone.run("redrive", "--all")
    assert status == 1
    assert f"'{gone.source}' does not exist" in err
    assert gone.waiting() == [1]
    missing = Dead(kafka, dead.source, f"missing-{uuid4().hex[:8]}", dead.capsys)
    status, _, err = missing.run("dead", "list")
    assert status == 78
    assert f"topic '{missing.topic}': does not exist" in err


def test_a_letter_that_its_topic_refuses_keeps_no_other_back(dead: Dead, kafka: str, topic: MakeTopic) -> None:
    compacted = Dead(kafka, topic("compacted", partitions=3, **{"cleanup.policy": "compact"}), dead.topic, dead.capsys)
    gone = Dead(kafka, f"gone-{uuid4().hex[:8]}", dead.topic, dead.capsys)
    # More than one piece of them, in front of all others.
    dead.fill([compacted.letter(number, None) for number in range(101)])
    dead.fill([gone.letter(200), dead.letter(201)])
    told = dead.json("redrive", "--all", status=1)
    assert (told["redriven"], told["left"]) == (1, 0)
    assert [one["offset"] for one in told["refused"]] == list(range(102))
    assert "INVALID_RECORD" in told["refused"][0]["why"]
    assert f"'{gone.source}' does not exist" in told["refused"][-1]["why"]
    assert [one.value for one in dead.back()] == [b"value 201"]
    # All of them go where one is named, if they can.
    assert dead.json("redrive", "--all", "--to", dead.source)["redriven"] == 102


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["redrive"], "redrive: takes --partition"),
        (["redrive", "--all", "--key", "a"], "or --all, alone"),
        (["redrive", "--all", "--dismiss", "--to", "t"], "one or the other"),
        (["dead", "list", "--offset", "3"], "--offset: takes one --partition"),
        (["dead", "show", "--partition", "1"], "takes one --partition and one --offset"),
    ],
)
def test_bad_flags_are_named(argv: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["consumer", *argv, "--kafka", "localhost:1", "--topic", "t"]) == 78
    assert says in capsys.readouterr().err


def test_brokers_that_do_not_answer_are_named_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(dead_reader, "_ANSWER", 1.0)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{taken.getsockname()[1]}"
        assert main(["consumer", "dead", "list", "--kafka", nobody, "--topic", "t"]) == 1
    said = capsys.readouterr().err
    # librdkafka tells of the one broker first, or that it was all of them.
    assert re.search(rf"no Kafka broker answers at {nobody}: (_TRANSPORT|_ALL_BROKERS_DOWN)", said), said


def test_flags_that_are_missing_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["consumer", "dead", "list", "--topic", "t"]) == 78
    assert "--kafka: not set" in capsys.readouterr().err
    assert main(["consumer", "dead", "list", "--kafka", "localhost:1"]) == 78
    assert "--topic: not set" in capsys.readouterr().err


def test_marks_name_stretches_and_what_makes_no_sense_is_passed_over() -> None:
    assert mark([5, 3, 4, 9]) == b"3-5,9"
    found = Offsets()
    for text in (b"3-5,9", b"x,-1,7-,8-6,99", b"0-99999999999", b"6"):
        take_mark(Record("t", 0, 50, None, None, ((MARK, text),)), found)
    assert list(found) == [(3, 7), (9, 9)]
    assert [offset in found for offset in (2, 3, 7, 8, 9, 10)] == [False, True, True, False, True, False]
