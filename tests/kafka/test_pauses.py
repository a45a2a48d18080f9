"""K15: pauses as they have to be, against those that the client has, compared after every event."""

import random
from collections.abc import Sequence
from typing import Any, cast

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from quiesce.inbox.record import TopicPartition
from quiesce.kafka.pauses import Pauses

ALL = [TopicPartition("orders", number) for number in range(4)]


class Client:
    """librdkafka's part in it: a pause is kept while the partition is somebody else's, an assignment may lift it, and
    a call that names a partition that it does not have yet does nothing."""

    def __init__(self) -> None:
        self.ours: set[TopicPartition] = set()
        self.paused: set[TopicPartition] = set()
        self.late: set[TopicPartition] = set()

    def pause(self, partitions: Sequence[KafkaPartition]) -> None:
        self.paused |= self._known(partitions)

    def resume(self, partitions: Sequence[KafkaPartition]) -> None:
        self.paused -= self._known(partitions)

    def _known(self, partitions: Sequence[KafkaPartition]) -> set[TopicPartition]:
        named = {TopicPartition(one.topic, one.partition) for one in partitions}
        assert named <= self.ours, "told of partitions that are not ours"
        if named & self.late:
            raise KafkaException(KafkaError(KafkaError._UNKNOWN_PARTITION))
        return named


@pytest.mark.parametrize("seed", range(40))
def test_K15_after_every_event_the_client_has_the_pauses_that_the_present_state_asks_for(seed: int) -> None:
    draw = random.Random(seed)
    client, pauses = Client(), Pauses()
    wanted: frozenset[TopicPartition] = frozenset()
    for _ in range(200):
        client.late = set()
        event = draw.choice(["came", "gone", "wanted", "wanted", "nothing"])
        if event == "came":
            came = set(draw.sample(ALL, draw.randint(1, 4))) - client.ours
            client.ours |= came
            if draw.random() < 0.5:
                # Another version of the library, or another strategy: its pauses are gone with the assignment.
                client.paused -= came
            client.late = set(draw.sample(sorted(came), len(came) // 2)) if draw.random() < 0.3 else set()
            pauses.came(came)
        elif event == "gone":
            client.ours -= set(draw.sample(ALL, draw.randint(1, 4)))
        elif event == "wanted":
            wanted = frozenset(draw.sample(ALL, draw.randint(0, 4)))
        # Each turn of the consumer's thread: whatever was not known to the client in one is in the next.
        for _ in range(2):
            pauses.apply(cast("Consumer", cast("Any", client)), client.ours, wanted & client.ours)
            client.late = set()
        assert client.paused & client.ours == wanted & client.ours, event
