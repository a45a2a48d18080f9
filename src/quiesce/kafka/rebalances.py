"""What the group tells its member: partitions come, go and are lost. The client calls this inside a poll."""

import logging
import time
from collections.abc import Callable, Collection, Mapping

from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as KafkaPartition

from quiesce.inbox.record import TopicPartition
from quiesce.kafka.holdings import Holdings
from quiesce.kafka.loop_watch import LoopWatch
from quiesce.kafka.pauses import Pauses
from quiesce.kafka.positions import Positions
from quiesce.kafka.records import as_partitions, shown
from quiesce.kafka.troubles import Troubles

_LOG = logging.getLogger("quiesce.kafka")

_LOOK = 0.01
"""Seconds between two looks while a revoke waits; a change wakes it earlier."""


class Rebalances:
    """The callbacks of one client. `serve` sends the next commit, if there is one, and says whether there was:
    while a callback waits nobody else can."""

    def __init__(
        self,
        holdings: Holdings,
        positions: Positions,
        pauses: Pauses,
        troubles: Troubles,
        revoke_bound: float,
        serve: Callable[[Consumer], bool],
        loop_watch: LoopWatch,
    ) -> None:
        self._holdings = holdings
        self._positions = positions
        self._pauses = pauses
        self._troubles = troubles
        self._revoke_bound = revoke_bound
        self._serve = serve
        self._loop_watch = loop_watch
        self.closing = False
        """Nobody is waited for any more."""

    @property
    def callbacks(self) -> Mapping[str, Callable[..., None]]:
        """As `Consumer.subscribe` takes them."""
        return {"on_assign": self.on_assign, "on_revoke": self.on_revoke, "on_lost": self.on_lost}

    def on_assign(self, consumer: Consumer, partitions: list[KafkaPartition]) -> None:
        gained = as_partitions(partitions)
        begin = self._positions.assign(consumer, gained)
        with self._holdings.lock:
            self._troubles.flows({partition.topic for partition in gained})
        if not gained:
            return
        self._pauses.came(gained)
        self._holdings.gained(gained, begin)
        _LOG.info("assignment %d: gained %s", self._holdings.number, shown(gained))

    def on_revoke(self, consumer: Consumer, partitions: list[KafkaPartition]) -> None:
        """Drain first, fence second: what is in hand may end and be committed, within the bound."""
        gone = as_partitions(partitions)
        turned = self._loop_watch.ask()
        self._holdings.leave(gone)
        deadline = time.monotonic() + self._revoke_bound
        while self._still_in_hand(gone, deadline):
            if not self._serve(consumer):
                with self._holdings.lock:
                    self._holdings.lock.wait(_LOOK)
        if not turned.is_set() and self._holdings.in_hand(gone):
            self._loop_watch.end_if_blocked(turned, f"work on {shown(gone)} has not ended, which the group takes back")
        self._let_go(gone, lost=False)

    def on_lost(self, consumer: Consumer, partitions: list[KafkaPartition]) -> None:
        self.lost(as_partitions(partitions))

    def lost(self, partitions: Collection[TopicPartition]) -> None:
        """Somebody else has these already: nothing of them may be committed."""
        # Unless a refused commit has told it before.
        if gone := self._holdings.partitions.intersection(partitions):
            self._let_go(gone, lost=True)

    def _still_in_hand(self, gone: Collection[TopicPartition], deadline: float) -> bool:
        if self.closing or not self._holdings.in_hand(gone):
            return False
        if time.monotonic() < deadline:
            return True
        _LOG.warning(
            "work on %s was not done %g s after the group took it back: its commit will be refused",
            shown(gone),
            self._revoke_bound,
        )
        return False

    def _let_go(self, gone: Collection[TopicPartition], lost: bool) -> None:
        self._positions.gone(gone)
        self._holdings.gone(gone, lost)
        if lost:
            _LOG.warning("assignment %d: the group has gone on without us: lost %s", self._holdings.number, shown(gone))
        else:
            _LOG.info("assignment %d: gave back %s", self._holdings.number, shown(gone))
