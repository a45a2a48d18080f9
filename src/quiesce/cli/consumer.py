"""`quiesce consumer ...`: which verbs there are."""

from typing import Any

from quiesce.cli import consumer_dead, consumer_redrive


def add_to(verbs: Any) -> None:
    parser = verbs.add_parser(
        "consumer",
        help="look after what consumers gave up",
        description="Looks after the records that consumers gave up: dead letters, in a topic beside the one they came "
        "from.",
        epilog="Begin with: quiesce consumer dead list --kafka HOST:PORT --topic orders.dead",
    )
    topics = parser.add_subparsers(title="topics", required=True, metavar="TOPIC")
    for verb in (consumer_dead, consumer_redrive):
        verb.add_to(topics)
