"""`quiesce inbox ...`: which verbs there are."""

from typing import Any

from quiesce.cli import inbox_prune, inbox_schema, inbox_status


def add_to(verbs: Any) -> None:
    parser = verbs.add_parser(
        "inbox",
        help="look after the inbox",
        description="Looks after the inbox: the table by which consumers tell a duplicate, and those beside it.",
    )
    topics = parser.add_subparsers(title="topics", required=True, metavar="TOPIC")
    for verb in (inbox_schema, inbox_status, inbox_prune):
        verb.add_to(topics)
