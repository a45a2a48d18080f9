"""`quiesce outbox ...`: which verbs there are."""

from typing import Any

from quiesce.cli import (
    outbox_dead,
    outbox_doctor,
    outbox_pause,
    outbox_peek,
    outbox_purge,
    outbox_rebase,
    outbox_redrive,
    outbox_resume,
    outbox_schema,
    outbox_status,
)


def add_to(verbs: Any) -> None:
    parser = verbs.add_parser(
        "outbox",
        help="look after the outbox",
        description="Looks after the outbox. What changes something is kept in the table outbox_audit.",
    )
    topics = parser.add_subparsers(title="topics", required=True, metavar="TOPIC")
    for verb in (
        outbox_schema,
        outbox_status,
        outbox_doctor,
        outbox_peek,
        outbox_dead,
        outbox_redrive,
        outbox_purge,
        outbox_pause,
        outbox_resume,
        outbox_rebase,
    ):
        verb.add_to(topics)
