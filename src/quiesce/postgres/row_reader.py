"""Taking events for a claim of the row store: where it begins to look, and what comes of its statement."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from quiesce.outbox.event import ClaimedEvent
from quiesce.postgres.driver import Connection
from quiesce.postgres.event_rows import EventRow
from quiesce.postgres.row_claim import RowClaim, events_of
from quiesce.postgres.row_floor import Floor
from quiesce.postgres.row_mapping import Mapped
from quiesce.postgres.row_positions import multirange
from quiesce.postgres.row_statements import MAX_PAGE, RowStatements

DUE_SHARE = 4
"""What is due again has at most one of so many parts of a claim, by keys."""


class RowReader:
    """What one store knows of where its events wait. It reads for one claim at a time."""

    def __init__(self, max_bytes: int) -> None:
        """`max_bytes`: where the events of a claim end, after one event at least."""
        self._max_bytes = max_bytes
        # Keys given back by an open claim while a claim statement runs.
        self._left: dict[str, int] = {}
        self._floor = Floor()
        self._floor_of = 0
        # What is left of the shares of small claims.
        self._share = 0
        # Whether something may wait below the claims that are open, beside what they have.
        self._waits_below = True

    def on(self, connections: int) -> None:
        """How many connections were ever opened: a new one may lead to another server, and so has a new floor."""
        if self._floor_of != connections:
            self._floor, self._floor_of = Floor(), connections

    async def read(
        self,
        connection: Connection,
        limit: int,
        statements: RowStatements,
        mapped: Mapped | None,
        claims: Sequence[RowClaim],
    ) -> list[ClaimedEvent]:
        """Takes up to `limit` events: above the claims that are open, as long as nothing waits below; see
        `row_statements`."""
        due, self._share = divmod(self._share + limit, DUE_SHARE)
        bottom = floor = self._floor.position
        if statements.survey:
            bottom = self._floor.begin(time.monotonic())
        begin = bottom
        if claims and bottom == floor and not self._waits_below:
            begin = max(bottom, 1 + max(claim.top for claim in claims))
        while True:
            in_flight = multirange(claim.in_flight for claim in claims)
            self._left = {}
            rows: Sequence[Any] = await connection.fetch(
                statements.claim,
                min(limit, MAX_PAGE),
                in_flight,
                self._max_bytes,
                bottom,
                begin,
                due,
                record_class=EventRow,
            )
            if mapped is not None:
                rows = await mapped.read(connection, rows)
            events, held = events_of(rows, self._left)
            # Where not all came that was asked for, nothing may be there above; then it looks below.
            self._waits_below = bool(held) or len(events) < limit
            if events or (begin == bottom and due):
                return events
            # Of a few events the share may be none, and nothing but retries may wait.
            begin, due = bottom, due or limit

    async def survey(self, connection: Connection, statement: str | None, events: Sequence[ClaimedEvent]) -> None:
        """Raises the floor, once in a while, by what transactions say behind a claim that brought these events."""
        if events:
            self._floor.seen(events[0].position, events[-1].position)
        if statement and self._floor.wants_survey(time.monotonic()):
            for xmin, own, first in await connection.fetch(statement, self._floor.position):
                self._floor.surveyed(int(xmin), None if own is None else int(own), first)

    def left(self, first: Mapping[str, int], claims: Sequence[RowClaim]) -> None:
        """These keys are given back, from these positions on: later claims must not count on what is open of them."""
        self._waits_below = True
        for claim in claims:
            claim.distrust(first)
        for key, position in first.items():
            self._left[key] = min(position, self._left.get(key, position))
