"""How `quiesce outbox` shows events and tables: for people, or as JSON."""

import base64
import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quiesce.postgres.peeking import Peeked

_WIDEST = 60


def print_json(shown: dict[str, Any]) -> None:
    print(json.dumps(shown, default=_plain, ensure_ascii=False))


def print_table(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Columns as wide as they need be; the last one is not filled up."""
    lines = [list(titles), *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(titles))]
    for line in lines:
        print("  ".join(value.ljust(width) for value, width in zip(line, widths, strict=True)).rstrip())


def as_dict(event: "Peeked", *, payloads: bool) -> dict[str, Any]:
    """Without the position, which never leaves the database."""
    shown: dict[str, Any] = {
        "id": event.id,
        "state": event.state,
        "key": event.key,
        "topic": event.topic,
        "type": event.type,
        "lane": event.lane,
        "bytes": event.size,
        "created_at": event.created_at,
        "parked_at": event.parked_at,
        "attempts": event.attempts,
        "next_at": event.next_at,
        "reason": event.reason,
    }
    if payloads:
        shown["headers"] = None if event.headers is None else json.loads(event.headers)
        text = _text(event.payload)
        shown["payload"] = text
        if text is None and event.payload is not None:
            shown["payload_base64"] = base64.b64encode(event.payload).decode()
    return shown


def payload_of(event: "Peeked", *, payloads: bool) -> str:
    """For a table."""
    if event.size is None:
        return "tombstone"
    if not payloads:
        return f"*** ({event.size:,} bytes)"
    text = _text(event.payload)
    return f"({event.size:,} bytes, not text)" if text is None else text


def instant(at: datetime | None) -> str:
    return "" if at is None else f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


def shortened(text: str | None) -> str:
    text = text or ""
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 1]}…"


def shown(text: str) -> str:
    """Somebody's text in a line of ours: in one line, and not without end."""
    return shortened(_cell(text))


def _text(payload: bytes | None) -> str | None:
    try:
        return None if payload is None else payload.decode()
    except UnicodeDecodeError:
        return None


def _cell(value: object) -> str:
    # A key may be any text; it must not move the cursor of a terminal.
    text = "" if value is None else str(value)
    return text if text.isprintable() else text.encode("unicode_escape").decode()


def _plain(value: object) -> str:
    return instant_of(value) if isinstance(value, datetime) else str(value)


def instant_of(at: datetime) -> str:
    return at.astimezone(UTC).isoformat()
