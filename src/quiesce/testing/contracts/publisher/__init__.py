"""The contract of `Publisher`."""

from quiesce.testing.contracts.expectations import within
from quiesce.testing.contracts.publisher.delivery import (
    OF_DELIVERY,
    a_broker_that_answers_is_reachable,
    a_cancel_does_not_take_messages_back,
    a_record_is_the_event,
    closed_is_closed,
    closing_flushes,
    discarding_nothing_is_nothing,
    dispatched_means_on_the_topic,
    is_a_resource_of_part_producers,
    no_payload_is_a_tombstone,
    nothing_to_publish_is_nothing,
    one_that_is_too_large_is_dead_at_once,
    one_without_a_topic_waits_alone,
    overlapping_calls_keep_the_order,
)
from quiesce.testing.contracts.publisher.silence import (
    OF_SILENCE,
    a_discard_ends_every_call,
    closing_in_silence_is_bounded_and_counts,
    silence_is_waited_out,
    what_came_before_a_discard_is_not_sent_after_it,
)
from quiesce.testing.contracts.publisher.world import Check, PublisherWorld, event, ids

CHECKS: tuple[Check, ...] = OF_DELIVERY
"""They disturb nobody: a broker may be shared."""

SILENCE_CHECKS: tuple[Check, ...] = OF_SILENCE
"""They silence the broker."""

__all__ = [
    "CHECKS",
    "OF_DELIVERY",
    "OF_SILENCE",
    "SILENCE_CHECKS",
    "Check",
    "PublisherWorld",
    "a_broker_that_answers_is_reachable",
    "a_cancel_does_not_take_messages_back",
    "a_discard_ends_every_call",
    "a_record_is_the_event",
    "closed_is_closed",
    "closing_flushes",
    "closing_in_silence_is_bounded_and_counts",
    "discarding_nothing_is_nothing",
    "dispatched_means_on_the_topic",
    "event",
    "ids",
    "is_a_resource_of_part_producers",
    "no_payload_is_a_tombstone",
    "nothing_to_publish_is_nothing",
    "one_that_is_too_large_is_dead_at_once",
    "one_without_a_topic_waits_alone",
    "overlapping_calls_keep_the_order",
    "silence_is_waited_out",
    "what_came_before_a_discard_is_not_sent_after_it",
    "within",
]
