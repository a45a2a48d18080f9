"""Starts of records, counted where they outlive the process, so that one that kills its process is found."""

import asyncio
import logging
from collections.abc import Sequence

from quiesce.inbox.ports import AnswersProbes, CountsStarts, KeepsStarts
from quiesce.inbox.record import Record

log = logging.getLogger("quiesce.workers")

ENDED_BOUND = 2.0
"""Seconds to note the end of records. What is not noted makes their next owner careful, and no more."""


class Starts:
    """What a consumer tells of its starts, if somebody counts them."""

    def __init__(self, consumer: str, counts: CountsStarts | None) -> None:
        self.counted = counts is not None
        self._consumer = consumer
        self._counts = counts

    async def begin(self, records: Sequence[Record]) -> bool:
        """Notes that these are fetched and begin soon. Returns whether one of them may kill its process; then none
        is noted.

        Raises:
            Unavailable: nobody knows.
        """
        assert self._counts is not None
        return any(await self._counts.began(self._consumer, records))

    async def begin_alone(self, record: Record) -> int:
        """Notes that this one begins, with nothing else in hand; returns its earlier starts that never ended.

        Raises:
            Unavailable: nobody knows.
        """
        assert self._counts is not None
        return (await self._counts.began(self._consumer, (record,), alone=True))[0]

    async def probe(self) -> None:
        """Asks whether the database is there that they are counted in.

        Raises:
            Unavailable: it does not answer.
        """
        counts: object = self._counts
        if isinstance(counts, AnswersProbes):
            await counts.probe()

    def keep(self, records: Sequence[Record]) -> None:
        """They end this process: however that goes, they were begun and have never ended."""
        counts: object = self._counts
        if isinstance(counts, KeepsStarts):
            counts.keep(self._consumer, records)

    async def end(self, records: Sequence[Record]) -> None:
        """They did not kill the process."""
        if self._counts is None or not records:
            return
        try:
            async with asyncio.timeout(ENDED_BOUND):
                await self._counts.ended(self._consumer, records)
        except TimeoutError:
            log.warning("%s: the end of %d records was not noted in time", self._consumer, len(records))
