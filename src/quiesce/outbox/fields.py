"""What the fields of an event can be, so that a database stores them and Kafka takes them. Pure."""

import re
from collections.abc import Mapping
from functools import lru_cache
from uuid import UUID

_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")


@lru_cache(1000)
def may_be_a_topic(name: str) -> bool:
    """Whether Kafka can have a topic of this name."""
    return _TOPIC_NAME.fullmatch(name) is not None and name not in (".", "..")


def wrong_text(value: object) -> str | None:
    """Why the value cannot be stored and sent as text, in words; None where it can."""
    if not isinstance(value, str):
        return f"got {value!r}, takes text"
    if "\0" in value:
        return "has a NUL character, which PostgreSQL cannot store"
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            return f"has half a surrogate pair at {error.start}, which UTF-8 cannot write"
    return None


def wrong_name(value: object) -> str | None:
    """The same for text that must be there."""
    wrong = wrong_text(value)
    return "is empty, takes text that is not" if wrong is None and not value else wrong


def wrong_topic(value: object) -> str | None:
    """The same for a topic's name."""
    wrong = wrong_name(value)
    if wrong is None and not may_be_a_topic(str(value)):
        return f"got {value!r}, which Kafka cannot have: takes 1 to 249 of a-z, A-Z, 0-9, '.', '_', '-'; not '.', '..'"
    return wrong


def wrong_id(value: object) -> str | None:
    """The same for an event's id."""
    return None if isinstance(value, UUID) else f"got {value!r}, takes a UUID"


def wrong_headers(value: object) -> str | None:
    """The same for headers as a whole."""
    return None if isinstance(value, Mapping) else f"got {type(value).__name__}, takes a mapping of text to text"
