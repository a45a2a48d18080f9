"""A redrive that is ended in the middle: nothing is left out, and what went is known."""

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from broker import records, wait_until

from quiesce.cli.main import main
from quiesce.inbox.reason import FAILED, Reason
from quiesce.inbox.record import Record
from quiesce.kafka import KafkaDeadLetters
from quiesce.lifecycle.deadline import Deadline
from quiesce_pytest import MakeTopic

LETTERS = 12

# Many letters take long to read. So do few, where each is fetched by itself and the client rests before the next one.
SLOW = "fetch.message.max.bytes=1\nqueued.min.messages=1\nfetch.queue.backoff.ms=3000\n"
TELLS_WHAT_IT_READS = """
import sys
from quiesce.cli.main import main
from quiesce.kafka import dead_reader

as_record = dead_reader.as_record

def told(message):
    print("read", message.offset(), file=sys.stderr, flush=True)
    return as_record(message)

dead_reader.as_record = told
sys.exit(main(sys.argv[1:]))
"""


async def fill(kafka: str, dead: str, source: str, count: int = LETTERS) -> None:
    letters = await KafkaDeadLetters(kafka, topic=dead).open()
    for number in range(count):
        record = Record(source, 0, number, b"k", str(number).encode(), (), 0.0)
        await letters.set_aside(record, Reason(FAILED, "", "", 1, "orders"), Deadline(time.monotonic() + 20))
    await letters.close(Deadline(time.monotonic() + 5))


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "SIGKILL"])
def test_K34_it_goes_on_where_it_was_ended(
    kafka: str, topic: MakeTopic, capsys: pytest.CaptureFixture[str], how: signal.Signals
) -> None:
    source, dead = topic("orders", partitions=1), topic("dead", partitions=1)
    asyncio.run(fill(kafka, dead, source))
    flags = ["consumer", "redrive", "--kafka", kafka, "--topic", dead, "--all", "--json"]
    # One letter a second is pieces of one, and far from over when the first has gone.
    command = [sys.executable, "-P", "-m", "quiesce", *flags, "--rate", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            wait_until(lambda: len(records(kafka, source)) >= 1, "nothing was sent back", 30)
            process.send_signal(how)
            out, _ = process.communicate(timeout=30)
        finally:
            process.kill()
    went = len(records(kafka, source))
    assert went < LETTERS, "it was too late"
    if how is signal.SIGINT:
        assert process.returncode == 130
        told = json.loads(out)
        assert (told["redriven"], told["read_to_end"]) == (went, False)

    assert main(flags) == 0
    rest = json.loads(capsys.readouterr().out)["redriven"]
    times = Counter(record.value for record in records(kafka, source))
    assert set(times) == {str(number).encode() for number in range(LETTERS)}, "a letter was left out"
    if how is signal.SIGINT:
        assert went + rest == LETTERS, "one was sent back twice"
    else:
        # Between the acks of a piece and its mark, it may go twice; an inbox knows it.
        assert sum(times.values()) <= LETTERS + 1


@pytest.mark.parametrize(
    ("how", "as_json"), [(signal.SIGINT, False), (signal.SIGTERM, True)], ids=["Ctrl-C", "SIGTERM, JSON"]
)
def test_it_hears_a_signal_in_the_middle_of_its_first_read(
    kafka: str, topic: MakeTopic, tmp_path: Path, how: signal.Signals, as_json: bool
) -> None:
    source, dead = topic("orders", partitions=1), topic("dead", partitions=1)
    asyncio.run(fill(kafka, dead, source, 40))
    slow = tmp_path / "slow.properties"
    slow.write_text(SLOW)
    flags = ["consumer", "redrive", "--kafka", kafka, "--kafka-config", str(slow), "--topic", dead, "--all"]
    command = [sys.executable, "-P", "-c", TELLS_WHAT_IT_READS, *flags, *(["--json"] if as_json else [])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            # It ends by itself if no broker answers.
            first = next((line for line in process.stderr if line.startswith("read ")), "nothing was read")
            assert first == "read 0\n"
            process.send_signal(how)
            # All of the letters would take it two minutes.
            out, _ = process.communicate(timeout=20)
        finally:
            process.kill()
    assert process.returncode == 130
    if as_json:
        told = json.loads(out)
        assert (told["redriven"], told["left"], told["read_to_end"]) == (0, 0, False)
    else:
        assert out == "redriven: 0 letters; how many wait is not known\n"
    assert records(kafka, source) == []
