"""The lanes that this store owns, in memory: taken over with what is set aside in them, and kept in line with it."""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from quiesce.errors import SettingsError
from quiesce.outbox.cursor import Cursor, Snapshot
from quiesce.postgres import log_statements as sql
from quiesce.postgres.log_connections import LogConnections, OtherLife
from quiesce.postgres.log_lane import LaneLog
from quiesce.postgres.log_parked import Parked, ParkedKeys
from quiesce.postgres.log_statements import array

logger = logging.getLogger("quiesce.postgres")

DeadPolicy = Literal["continue", "hold_key"]


@dataclass(frozen=True, slots=True)
class DeadPolicies:
    """What a dead letter does to its key, by topic. `default` for topics that are not named."""

    default: DeadPolicy
    topics: Mapping[str, DeadPolicy]

    @classmethod
    def of(cls, name: str, given: DeadPolicy | Mapping[str, DeadPolicy]) -> "DeadPolicies":
        """Raises SettingsError for anything but "continue" and "hold_key". A mapping's other topics continue."""
        topics = {} if isinstance(given, str) else dict(given)
        default: DeadPolicy = given if isinstance(given, str) else "continue"
        for policy in (default, *topics.values()):
            if policy not in ("continue", "hold_key"):
                raise SettingsError(f'{name}: got dead {policy!r}, takes "continue", "hold_key" or one of them a topic')
        return cls(default, topics)

    def holds(self, topic: str) -> bool:
        return self.topics.get(topic, self.default) == "hold_key"

    @property
    def held_topics(self) -> list[str]:
        return [topic for topic, policy in self.topics.items() if policy == "hold_key"]


class OwnedLogs:
    """`taken` tells which lanes are owned now, with their epochs."""

    def __init__(
        self,
        name: str,
        connections: LogConnections,
        policies: DeadPolicies,
        max_parked: int,
        taken: Callable[[], Mapping[int, int]],
    ) -> None:
        self._name = name
        self._connections = connections
        self._policies = policies
        self._max_parked = max_parked
        self._taken = taken
        self._logs: dict[int, LaneLog] = {}
        # Lanes of before, until their claims have ended.
        self._retired: list[LaneLog] = []
        self._spent: dict[int, int] = {}
        # The lanes that the logs were last found in line with.
        self._adopted: Mapping[int, int] | None = None
        self._full: set[int] = set()

    @property
    def logs(self) -> Sequence[LaneLog]:
        return list(self._logs.values())

    def busy(self) -> list[int]:
        """Lanes that claims have something of."""
        return [log.lane for log in self._logs.values() if log.busy]

    def unfinished(self) -> bool:
        """Whether claims have something of lanes that are not owned any more, and may yet record it."""
        if self.in_line:
            return False
        taken = self._taken()
        every = [*self._logs.values(), *self._retired]
        return any(log.busy and not log.lost and taken.get(log.lane) != log.epoch for log in every)

    @property
    def in_line(self) -> bool:
        """Whether the logs are those of the lanes that are owned now."""
        return self._taken() is self._adopted and not self._retired

    def owns(self, log: LaneLog) -> bool:
        return self._taken().get(log.lane) == log.epoch

    def valid(self, log: LaneLog) -> bool:
        """Whether what is read from it may be handed out."""
        return not log.lost and self._logs.get(log.lane) is log and self.owns(log)

    def working(self, unwanted: Iterable[int]) -> list[LaneLog]:
        """Lanes to hand out events of, but for the unwanted ones."""
        unwanted, taken = frozenset(unwanted), self._taken()
        return [
            log
            for lane, log in self._logs.items()
            if lane not in unwanted
            and not log.lost
            and taken.get(lane) == log.epoch
            and not (log.chain and log.blocked)
        ]

    def readable(self, unwanted: Iterable[int]) -> list[LaneLog]:
        """Those of the working lanes that more may be read of."""
        logs = self.working(unwanted)
        if any(log.parked.count for log in logs):
            return [log for log in logs if self.has_room(log)]
        return logs

    def has_room(self, log: LaneLog) -> bool:
        """Whether more of it may be read, since not too much is set aside."""
        if log.parked.count < self._max_parked:
            self._full.discard(log.lane)
            return True
        if log.lane not in self._full:
            self._full.add(log.lane)
            logger.error(
                "%s: %d events of lane %d are set aside, max_parked is %d: nothing more is read from it until some are "
                "dispatched or discarded",
                self._name,
                log.parked.count,
                log.lane,
                self._max_parked,
            )
        return False

    def lose(self, why: str) -> list[LaneLog]:
        """Whatever was read is to be read anew. Returns what is lost by that."""
        logs = [log for log in (*self._logs.values(), *self._retired) if not log.lost]
        for log in logs:
            log.lose(why)
        return logs

    async def adopt(self) -> list[int]:
        """Brings the logs in line with the lanes that are owned. Returns lanes that need another epoch: somebody else
        has raised it, or it was used already.

        What was read from a lane that was lost meanwhile may still be recorded, as long as nobody has taken it.
        """
        if self.in_line and not [log for log in self._logs.values() if log.lost]:
            return []
        taken = self._taken()
        self._adopted = None
        for log in self.logs:
            if log.lost or taken.get(log.lane) != log.epoch:
                del self._logs[log.lane]
                self._spent[log.lane] = log.epoch
                self._retired.append(log)
        self._retired = [log for log in self._retired if log.busy and not log.lost]
        # An epoch in which something went wrong is not used again: nobody knows what may yet arrive of it. A server
        # that forgot the last ones gives them out once more.
        spent = [lane for lane, epoch in taken.items() if lane not in self._logs and self._spent.get(lane) == epoch]
        new = [lane for lane in taken if lane not in self._logs and lane not in spent]
        if not new:
            self._adopted = taken
            return spent
        try:
            rows, parked = await self._stored(array(new))
        except OtherLife:
            rows, parked = await self._stored(array(new))
        logs = {log.lane: log for log in map(self._log, rows) if log.epoch == taken[log.lane]}
        now = time.monotonic()
        for lane, *row in parked:
            if lane in logs:
                logs[lane].parked.load(_parked(row, now))
        for old in self._retired:
            if old.lane in logs:
                old.lose("it was lost, and taken anew")
        self._logs.update(logs)
        if len(logs) == len(new):
            self._adopted = taken
        return [*spent, *(lane for lane in new if lane not in logs)]

    async def _stored(self, lanes: str) -> tuple[Sequence[Any], Sequence[Any]]:
        """Both of the life that is the present one when it returns."""
        life = self._connections.life
        # First the cursors: what moves behind an event later cannot leave it unread and not set aside.
        rows = await self._connections.fetch(sql.LANES, lanes, life=life)
        every = self._policies.default == "hold_key"
        topics = array(self._policies.held_topics)
        return rows, await self._connections.fetch(sql.PARKED, lanes, every, topics, life=life)

    async def look(self) -> None:
        """Sees what operators did to what is set aside. Nothing may be recorded meanwhile."""
        logs = {log.lane: log for log in self._logs.values() if not log.lost}
        if not logs:
            return
        rows = await self._connections.fetch(sql.HEADS, array(logs))
        now = time.monotonic()
        seen = set()
        for lane, *row in rows:
            parked = _parked(row, now)
            seen.add(parked.event_id)
            log = logs[lane]
            known = log.parked.find(parked.key, parked.event_id)
            if known is None:
                log.parked.load(parked)
            elif known.dead or (known.stored == "retry" and parked.due_at < known.due_at - 1.0):
                log.parked.redriven(known, parked.due_at, parked.attempts)
        dead = [row for log in logs.values() for row in log.parked.rows() if row.dead]
        if dead:
            ids = array(row.event_id for row in dead)
            seen |= {row[0] for row in await self._connections.fetch(sql.STILL_DEAD, ids)}
        for log in logs.values():
            for known in list(log.parked.rows()):
                if known.stored in ("retry", "dead") and known.claim is None and known.event_id not in seen:
                    log.parked.remove(known, in_table=False)

    def _log(self, row: Any) -> LaneLog:
        lane, epoch, seen, last, until, at, dispatched, version = row
        cursor = Cursor(Snapshot.parse(seen), last, None if until is None else Snapshot.parse(until), at)
        return LaneLog(lane, epoch, cursor, cursor, dispatched, ParkedKeys(lane), self._policies.holds, version)


def _parked(row: Sequence[Any], now: float) -> Parked:
    event_id, position, key, state, reason, attempts, wait = row
    return Parked(
        event_id, position, key, reason, attempts, dead=state == "dead", due_at=now + (wait or 0.0), stored=state
    )
