"""The contract of `OutboxStore`.

Two kinds of store fulfil it. In one every store may claim every event; in the other each store works on a share of the
keys, and gets its share of those when another store leaves. So what concerns several stores is asked of all of them
together, and order is asked for within a key and within a claim, not between claims.
"""

from quiesce.testing.contracts.outbox_store.claims import (
    OF_CLAIMS,
    a_late_commit_is_neither_skipped_nor_waited_for,
    an_event_comes_as_it_was_written,
    an_event_given_back_goes_before_later_ones,
    events_come_in_order_and_within_the_limit,
    is_a_resource_of_part_pools,
    no_event_is_in_two_claims_of_a_store,
    nothing_to_claim_is_nothing,
)
from quiesce.testing.contracts.outbox_store.leaving import (
    OF_LEAVING,
    a_cancelled_claim_leaves_nothing_claimed,
    closed_is_closed,
    closing_frees_an_open_claim_and_says_so,
)
from quiesce.testing.contracts.outbox_store.settling import (
    OF_SETTLING,
    a_dead_one_never_comes_again_and_holds_nothing,
    a_half_failed_claim_keeps_its_marks,
    a_key_in_trouble_fills_no_page,
    a_retried_one_can_die,
    a_retry_holds_its_key_and_no_other,
    an_outage_counts_no_attempt,
    attempts_are_counted,
    what_was_dispatched_never_comes_again,
    what_was_released_comes_again_unchanged,
)
from quiesce.testing.contracts.outbox_store.sharing import (
    OF_SHARING,
    a_claim_that_is_held_back_comes_later,
    a_key_in_another_stores_hands_is_held_back,
    many_relays_lose_nothing_and_keep_each_keys_order,
    no_event_is_in_two_stores,
)
from quiesce.testing.contracts.outbox_store.world import (
    Check,
    OutboxWorld,
    State,
    all_of,
    claim,
    drain,
    event,
    first_to_get,
    ids,
    in_order,
    peek,
    until,
)

CHECKS: tuple[Check, ...] = (*OF_CLAIMS, *OF_SETTLING, *OF_SHARING, *OF_LEAVING)

__all__ = [
    "CHECKS",
    "OF_CLAIMS",
    "OF_LEAVING",
    "OF_SETTLING",
    "OF_SHARING",
    "Check",
    "OutboxWorld",
    "State",
    "a_cancelled_claim_leaves_nothing_claimed",
    "a_claim_that_is_held_back_comes_later",
    "a_dead_one_never_comes_again_and_holds_nothing",
    "a_half_failed_claim_keeps_its_marks",
    "a_key_in_another_stores_hands_is_held_back",
    "a_key_in_trouble_fills_no_page",
    "a_late_commit_is_neither_skipped_nor_waited_for",
    "a_retried_one_can_die",
    "a_retry_holds_its_key_and_no_other",
    "all_of",
    "an_event_comes_as_it_was_written",
    "an_event_given_back_goes_before_later_ones",
    "an_outage_counts_no_attempt",
    "attempts_are_counted",
    "claim",
    "closed_is_closed",
    "closing_frees_an_open_claim_and_says_so",
    "drain",
    "event",
    "events_come_in_order_and_within_the_limit",
    "first_to_get",
    "ids",
    "in_order",
    "is_a_resource_of_part_pools",
    "many_relays_lose_nothing_and_keep_each_keys_order",
    "no_event_is_in_two_claims_of_a_store",
    "no_event_is_in_two_stores",
    "nothing_to_claim_is_nothing",
    "peek",
    "until",
    "what_was_dispatched_never_comes_again",
    "what_was_released_comes_again_unchanged",
]
