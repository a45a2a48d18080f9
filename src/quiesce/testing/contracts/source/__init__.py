"""The contract of `Source`."""

from quiesce.testing.contracts.expectations import within
from quiesce.testing.contracts.source.positions import (
    OF_POSITIONS,
    one_partition_is_put_away_alone,
    what_is_committed_does_not_come_again,
    what_is_done_behind_the_offset_does_not_come_again,
    what_is_not_committed_comes_to_the_next_member,
    what_is_put_away_finished_does_not,
    what_is_put_away_unfinished_comes_again,
)
from quiesce.testing.contracts.source.reading import (
    OF_READING,
    a_batch_is_at_most_the_limit,
    a_cancelled_fetch_loses_nothing,
    a_full_partition_stops_alone,
    an_empty_batch_comes_within_a_second,
    closed_is_closed,
    is_a_resource_of_part_producers,
    partitions_come_in_their_order,
)
from quiesce.testing.contracts.source.rebalances import (
    OF_REBALANCES,
    a_member_that_leaves_hands_over_at_once,
    a_number_grows_and_an_old_one_stays_refused,
    a_rebalance_waits_for_the_batch_in_hand,
    past_its_bound_a_batch_is_refused_and_what_stays_is_not,
    put_away_past_its_bound_what_stays_comes_again,
    what_leaves_is_told_and_may_still_be_committed,
    what_was_read_ahead_goes_with_its_partition,
)
from quiesce.testing.contracts.source.world import (
    Check,
    SourceWorld,
    handle,
    hold,
    next_batch,
    numbered,
    offsets,
    refusal,
    values,
)

CHECKS: tuple[Check, ...] = (*OF_READING, *OF_POSITIONS, *OF_REBALANCES)

__all__ = [
    "CHECKS",
    "OF_POSITIONS",
    "OF_READING",
    "OF_REBALANCES",
    "Check",
    "SourceWorld",
    "a_batch_is_at_most_the_limit",
    "a_cancelled_fetch_loses_nothing",
    "a_full_partition_stops_alone",
    "a_member_that_leaves_hands_over_at_once",
    "a_number_grows_and_an_old_one_stays_refused",
    "a_rebalance_waits_for_the_batch_in_hand",
    "an_empty_batch_comes_within_a_second",
    "closed_is_closed",
    "handle",
    "hold",
    "is_a_resource_of_part_producers",
    "next_batch",
    "numbered",
    "offsets",
    "one_partition_is_put_away_alone",
    "partitions_come_in_their_order",
    "past_its_bound_a_batch_is_refused_and_what_stays_is_not",
    "put_away_past_its_bound_what_stays_comes_again",
    "refusal",
    "values",
    "what_is_committed_does_not_come_again",
    "what_is_done_behind_the_offset_does_not_come_again",
    "what_is_not_committed_comes_to_the_next_member",
    "what_is_put_away_finished_does_not",
    "what_is_put_away_unfinished_comes_again",
    "what_leaves_is_told_and_may_still_be_committed",
    "what_was_read_ahead_goes_with_its_partition",
    "within",
]
