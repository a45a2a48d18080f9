"""Several relays on one outbox, one of them replaced in the middle, with producers that break: on the test kit."""

import asyncio
from collections import Counter

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quiesce.outbox import OutboxEvent
from quiesce.outbox.events import ProducerDiscarded
from quiesce.relay import Relay
from quiesce.testing import virtual_time
from quiesce.testing.manual_stop import ManualStop
from quiesce.testing.memory_outbox import MemoryOutbox, MemoryTable
from quiesce.testing.memory_publisher import Fault, MemoryBroker, MemoryPublisher

MAX_IN_FLIGHT = 6


class Replica:
    """A relay with a store and a producer of its own, on the table and the broker of all."""

    def __init__(self, table: MemoryTable, broker: MemoryBroker, faults: dict[str, list[Fault]]) -> None:
        self.store = MemoryOutbox(table)
        self.stop = ManualStop("relay")
        self.publisher = MemoryPublisher(broker, lambda e: faults[e.type].pop(0) if faults.get(e.type) else None)
        self._relay = Relay(self.store, self.publisher, batch=3, max_in_flight=MAX_IN_FLIGHT, publish_bound=1.0)

    async def run(self) -> None:
        await self.publisher.open()
        await self._relay.run(self.stop)
        assert not self.store.claims
        assert self.publisher.discards == len(self.stop.told(ProducerDiscarded))


@given(
    keys=st.lists(st.sampled_from("abcd"), min_size=1, max_size=40),
    lost=st.dictionaries(st.integers(0, 39), st.lists(st.sampled_from(Fault), min_size=1, max_size=3), max_size=6),
    silent_from=st.integers(1, 100),
    taken=st.integers(0, 5),
    replaced_at=st.integers(1, 100),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_nothing_is_lost_and_order_holds_while_producers_break_and_relays_change(
    keys: list[str], lost: dict[int, list[Fault]], silent_from: int, taken: int, replaced_at: int
) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, virtual_time.VirtualLoop)
        table, broker = MemoryTable(), MemoryBroker(taken=taken)
        broker.create_topic("orders", partitions=2)
        # The type carries the number of the event, so that the faults and the checks can find it.
        table.enqueue(*(OutboxEvent("orders", key, str(number), "{}") for number, key in enumerate(keys)))
        faults = {str(number): list(answers) for number, answers in lost.items()}
        breaks = sum(len(answers) for answers in faults.values())
        old, new = Replica(table, broker, faults), Replica(table, broker, faults)
        loop.at_turn(replaced_at, lambda: old.stop.now(within=20.0))
        loop.at_turn(silent_from if silent_from != replaced_at else silent_from + 1, broker.silence)
        loop.call_at(5.0, broker.speak)

        def stop_when_empty() -> None:
            if any(row.waiting for row in table.rows) or loop.time() < 6.0:
                loop.call_later(1.0, stop_when_empty)
            else:
                old.stop.now()
                new.stop.now()

        stop_when_empty()
        async with asyncio.TaskGroup() as replicas:
            replicas.create_task(old.run())
            replicas.create_task(new.run())
        numbers = [int(record.header("type") or "") for record in broker.records("orders")]
        assert set(numbers) == set(range(len(keys)))
        for key in set(keys):
            firsts = list(dict.fromkeys(number for number in numbers if keys[number] == key))
            assert firsts == sorted(firsts), key
        doubled = sum(Counter(numbers).values()) - len(keys)
        discards = old.publisher.discards + new.publisher.discards
        assert discards <= breaks + 4
        assert doubled <= discards * MAX_IN_FLIGHT

    virtual_time.run(main())


def test_a_rolling_update_doubles_nothing() -> None:
    for turn in range(1, 100):

        async def main(turn: int = turn) -> None:
            loop = asyncio.get_running_loop()
            assert isinstance(loop, virtual_time.VirtualLoop)
            table, broker = MemoryTable(), MemoryBroker()
            broker.create_topic("orders")
            table.enqueue(*(OutboxEvent("orders", f"k{n % 5}", str(n), "{}") for n in range(40)))
            old, new = Replica(table, broker, {}), Replica(table, broker, {})
            loop.at_turn(turn, lambda: old.stop.now(within=20.0))
            old.stop.at(1.0)
            new.stop.at(2.0)
            async with asyncio.TaskGroup() as replicas:
                replicas.create_task(old.run())
                replicas.create_task(new.run())
            numbers = sorted(int(record.header("type") or "") for record in broker.records("orders"))
            assert numbers == list(range(40))
            assert not old.stop.abandoned
            assert not new.stop.abandoned

        virtual_time.run(main())
