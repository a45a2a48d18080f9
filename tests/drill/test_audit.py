"""The audit sees every kind of damage, and takes nothing for damage that is none."""

import random

import pytest

from quiesce.drill.audit import Arrival, Findings, OutboxRow, audit

KEYS = ("1", "2", "3")


def rows() -> list[OutboxRow]:
    """Two events for each of three orders; positions 1 to 6, the first events before the second ones."""
    kinds = ("OrderPlaced", "OrderExpired")
    return [
        OutboxRow(f"e{position}", position, KEYS[(position - 1) % 3], kinds[(position - 1) // 3])
        for position in range(1, 7)
    ]


def topic(*events: str) -> list[Arrival]:
    """These events in one partition, in this order, each with the key of its row."""
    keys = {row.event_id: row.key for row in rows()}
    return [Arrival(event, keys[event], 0, offset) for offset, event in enumerate(events)]


def findings(
    arrivals: list[Arrival],
    *,
    accepted: tuple[str, ...] = KEYS,
    orders: tuple[str, ...] = KEYS,
    table: list[OutboxRow] | None = None,
) -> Findings:
    return audit(accepted, orders, rows() if table is None else table, arrivals)


def test_all_there() -> None:
    found = findings(topic("e1", "e2", "e3", "e4", "e5", "e6"))

    assert found == Findings(3, 6, (), (), 0, 0, (), ())
    assert found.clean


def test_lost_event_is_named() -> None:
    found = findings(topic("e1", "e2", "e3", "e5", "e6"))

    assert found.lost_events == ("e4",)
    assert (found.delivered, found.lost, found.undispatched) == (5, 1, 0)
    assert not found.clean


def test_event_that_still_waits_is_lost_and_said_to_wait() -> None:
    table = rows()
    table[5] = OutboxRow("e6", 6, "3", "OrderExpired", dispatched=False)

    found = findings(topic("e1", "e2", "e3", "e4", "e5"), table=table)

    assert (found.lost_events, found.undispatched) == (("e6",), 1)


def test_accepted_order_without_row_is_lost() -> None:
    found = findings(topic("e1", "e2", "e3", "e4", "e5", "e6"), accepted=("1", "2", "3", "99"))

    assert found.lost_orders == ("99",)
    assert not found.clean


@pytest.mark.parametrize("accepted", [KEYS, ("1", "2")])
def test_order_without_its_first_event_is_lost_whether_or_not_a_client_was_told(accepted: tuple[str, ...]) -> None:
    table = [row for row in rows() if row.event_id != "e3"]

    found = findings(topic("e1", "e2", "e4", "e5", "e6"), accepted=accepted, table=table)

    assert found.lost_orders == ("3",)


def test_order_nobody_was_told_of_is_no_damage() -> None:
    """Its client's connection was cut after the commit."""
    assert findings(topic("e1", "e2", "e3", "e4", "e5", "e6"), accepted=("1",)).clean


def test_where_clients_ask_again_an_order_nobody_was_told_of_is_one_too_many() -> None:
    arrivals = topic("e1", "e2", "e3", "e4", "e5", "e6")

    found = audit(("1", "2"), KEYS, rows(), arrivals, unanswered=0)

    assert found.doubled_orders == ("3",)
    assert not found.clean
    # It may belong to the one that has no answer.
    assert audit(("1", "2"), KEYS, rows(), arrivals, unanswered=1).clean


def test_id_given_to_two_clients_hides_a_lost_order() -> None:
    found = findings(topic("e1", "e2", "e3", "e4", "e5", "e6"), accepted=("1", "2", "3", "2"))

    assert (found.accepted, found.lost_orders) == (4, ("2",))


def test_duplicates_are_counted_and_allowed() -> None:
    found = findings(topic("e1", "e2", "e2", "e3", "e4", "e5", "e6", "e6", "e6"))

    assert (found.delivered, found.duplicates) == (6, 3)
    assert found.clean


def test_inversion_within_a_key_is_named() -> None:
    found = findings(topic("e2", "e3", "e4", "e1", "e5", "e6"))

    assert found.out_of_order == ("e4",)
    assert (found.lost, found.duplicates) == (0, 0)
    assert not found.clean


def test_order_between_keys_means_nothing() -> None:
    assert findings(topic("e3", "e2", "e1", "e6", "e5", "e4")).clean


def test_repeat_after_a_crash_is_a_duplicate_and_no_disorder() -> None:
    """A relay was killed before it marked e1, e2, e4: its successor sends the stretch again."""
    found = findings(topic("e1", "e2", "e4", "e1", "e2", "e4", "e3", "e5", "e6"))

    assert (found.duplicates, found.out_of_order) == (3, ())
    assert found.clean


def test_disorder_is_not_hidden_by_a_repeat_in_order() -> None:
    found = findings(topic("e4", "e1", "e4", "e2", "e3", "e5", "e6"))

    assert (found.duplicates, found.out_of_order) == (1, ("e4",))
    assert not found.clean


def test_key_in_two_partitions_has_no_order() -> None:
    arrivals = topic("e1", "e2", "e3", "e5", "e6")
    arrivals.append(Arrival("e4", "1", 1, 0))

    found = findings(arrivals)

    assert (found.lost, len(found.out_of_order)) == (0, 1)


def test_duplicate_in_another_partition_is_disorder_too() -> None:
    arrivals = topic("e1", "e2", "e3", "e4", "e5", "e6")
    arrivals.append(Arrival("e1", "1", 1, 0))

    found = findings(arrivals)

    assert (found.duplicates, found.out_of_order) == (1, ("e1",))


@pytest.mark.parametrize(
    ("stranger", "name"),
    [
        (Arrival("e99", "1", 0, 10), "e99"),
        (Arrival("e1", "2", 0, 10), "e1"),
        (Arrival("", "1", 0, 10), "message 10 of partition 0"),
    ],
    ids=["of no row", "under another key", "without an id"],
)
def test_message_that_no_row_accounts_for_is_named(stranger: Arrival, name: str) -> None:
    found = findings([*topic("e1", "e2", "e3", "e4", "e5", "e6"), stranger])

    assert found.foreign == (name,)
    assert found.duplicates == 0
    assert not found.clean


def test_an_event_under_a_wrong_key_only_is_lost() -> None:
    found = findings([*topic("e1", "e2", "e3", "e4", "e5"), Arrival("e6", "1", 0, 10)])

    assert (found.lost_events, found.foreign) == (("e6",), ("e6",))


def test_the_order_in_which_arrivals_are_handed_over_does_not_matter() -> None:
    arrivals = topic("e2", "e1", "e3", "e4", "e4", "e5", "e6")
    shuffled = arrivals.copy()
    random.Random(7).shuffle(shuffled)

    assert findings(shuffled) == findings(arrivals)


@pytest.mark.parametrize("seed", range(20))
def test_planted_damage_is_counted_exactly(seed: int) -> None:
    """A thousand keys, in which a known number of events is dropped, doubled and swapped."""
    chance = random.Random(seed)
    keys = [str(number) for number in range(1000)]
    table = [
        OutboxRow(f"{kind}-{key}", position, key, kind)
        for position, (kind, key) in enumerate(
            [("OrderPlaced", key) for key in keys] + [("OrderExpired", key) for key in keys]
        )
    ]
    chosen = chance.sample(keys, 60)
    dropped, doubled, swapped = set(chosen[:20]), set(chosen[20:40]), set(chosen[40:])
    log: dict[int, list[OutboxRow]] = {partition: [] for partition in range(4)}
    for row in table:
        if not (row.type == "OrderExpired" and row.key in dropped):
            log[int(row.key) % 4].append(row)
    for key in doubled:
        partition = log[int(key) % 4]
        partition.append(next(row for row in partition if row.key == key))
    for key in swapped:
        partition = log[int(key) % 4]
        first, second = (index for index, row in enumerate(partition) if row.key == key)
        partition[first], partition[second] = partition[second], partition[first]
    arrivals = [
        Arrival(row.event_id, row.key, partition, offset)
        for partition, kept in log.items()
        for offset, row in enumerate(kept)
    ]

    found = audit(keys, keys, table, arrivals)

    assert {event.partition("-")[2] for event in found.lost_events} == dropped
    assert {event.partition("-")[2] for event in found.out_of_order} == swapped
    assert (found.duplicates, found.delivered, found.lost_orders) == (20, 1980, ())
