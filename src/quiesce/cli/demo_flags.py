"""The flags of `quiesce demo`, and what they take."""

import argparse
import re
from pathlib import Path

from quiesce.cli.flags import add_flag, add_switch

_ADDRESS = re.compile(r"[^\s,:]+:\d{1,5}(,[^\s,:]+:\d{1,5})*")


def add_flags(parser: argparse.ArgumentParser) -> None:
    add_flag(
        parser,
        "--seconds",
        default=30.0,
        convert=_seconds,
        metavar="N",
        help="how long to send orders, at least: what is done to the replicas is always done to its end",
    )
    add_flag(parser, "--rate", default=200.0, convert=_rate, metavar="N", help="orders a second")
    add_switch(parser, "--no-kill", help="leave out the SIGKILL")
    add_flag(
        parser,
        "--broker",
        default="tansu",
        convert=_broker,
        metavar="tansu|kafka|ADDRESS",
        help="the embedded broker, Apache Kafka (needs Java), or a broker that runs already",
    )
    add_flag(
        parser,
        "--postgres",
        default="embedded",
        metavar="embedded|DSN",
        help="a PostgreSQL of its own, or one that runs already; there it makes a database and drops it again",
    )
    add_flag(
        parser,
        "--store",
        default="log",
        choices=("log", "row"),
        help="how the relay works: a cursor over a log, or rows that are locked and marked",
    )
    add_flag(
        parser,
        "--logs",
        default=None,
        convert=_directory,
        metavar="DIRECTORY",
        help="keep every replica's log there; else only those are kept, and named, that did not end well",
    )
    add_switch(parser, "--json", help="print the outcome as one JSON object in the last line")


def _seconds(text: str) -> float:
    return _number(text, 1, 3600)


def _rate(text: str) -> float:
    return _number(text, 1, 5000)


def _directory(text: str) -> Path:
    path = Path(text)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text}: {error.strerror}; takes a directory that can be written") from error
    return path


def _number(text: str, least: float, most: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not least <= value <= most:
        raise argparse.ArgumentTypeError(f"got {text!r}, takes a number from {least:g} to {most:g}")
    return value


def _broker(text: str) -> str:
    if text not in ("tansu", "kafka") and not _ADDRESS.fullmatch(text):
        raise argparse.ArgumentTypeError(f"got {text!r}, takes tansu, kafka or HOST:PORT")
    return text
