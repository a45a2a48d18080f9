"""Flags of verbs that speak to Kafka, and what they take."""

import argparse

from quiesce.cli.flags import add_flag
from quiesce.errors import SettingsError


def add_kafka(parser: argparse.ArgumentParser, why: str = "the brokers") -> None:
    """`why`: what they are for, as the help says it."""
    add_flag(parser, "--kafka", default=None, metavar="ADDRESS", help=f"{why}: host:port[,host:port...]")
    add_flag(
        parser,
        "--kafka-config",
        default=None,
        metavar="FILE",
        help="more settings of the Kafka client, one name=value a line, such as security.protocol=SSL",
    )


def kafka_settings(arguments: argparse.Namespace) -> dict[str, str]:
    """The settings with the address. Raises SettingsError where there is none, or for a bad file."""
    if not arguments.kafka:
        raise SettingsError("--kafka: not set, takes host:port[,host:port...]; or set QUIESCE_KAFKA")
    return {**kafka_config(arguments.kafka_config), "bootstrap.servers": arguments.kafka}


def kafka_config(path: str | None) -> dict[str, str]:
    """What stands in the file. Raises SettingsError for a file that cannot be read, or a line that is none."""
    if path is None:
        return {}
    try:
        with open(path, encoding="utf-8") as file:
            lines = [line.strip() for line in file]
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"--kafka-config: {path}: cannot be read: {error}") from error
    config = {}
    for number, line in enumerate(lines, 1):
        if not line or line.startswith("#"):
            continue
        name, equals, value = line.partition("=")
        if not equals or not name.strip():
            # Not shown: it may be a piece of a password.
            raise SettingsError(f"--kafka-config: {path}, line {number}: takes name=value")
        config[name.strip()] = value.strip()
    return config
