"""A worker that handles records of a group's partitions and commits only what it has handled."""

import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, cast

from quiesce.errors import HandlerStuck, SettingsError
from quiesce.inbox.ports import CountsStarts, Postpones, SetsAside, Source
from quiesce.lifecycle.backoff import Backoff
from quiesce.lifecycle.ports import OnDrain, Resource, Stop
from quiesce.workers.arguments import After, check_count, check_seconds, check_terms
from quiesce.workers.bad_input import BadInput, Decode
from quiesce.workers.consuming import Consuming
from quiesce.workers.handlers import Batches, Handler, Routes, handlers_of
from quiesce.workers.probe import Ask
from quiesce.workers.retries import Retries
from quiesce.workers.terms import Terms


class Consumer:
    """Fetches ahead, handles in order per key, commits behind what is done, and again. A `Worker`.

    An iteration is one call of a handler. Records of one key begin one after the other; with `concurrency` above 1
    those of others run beside them. Committed is, per partition, the offset of the first record that is not done, and
    beside it what is done behind it. A handler may see a record twice: after a crash, and after a rebalance that its
    bound was too short for.

    A handler that raises is tried again after a wait with backoff; its key waits, the others go on. A server that is
    away is waited for, and no attempt is counted. After the last attempt the record goes to `dead_letters`, or, where
    there are none, is tried on for ever: no record is skipped. An abort is not an outcome.

    When the group takes a partition back, nothing of it begins any more; what has begun ends within the source's revoke
    bound, is committed, and then the partition is let go. Handlers that overrun are cancelled; one that does not end
    then ends the service with a status that is not 0. After a stop it is the same for all partitions, within the
    worker's bound; then the group is left.

    Args:
        source: the member of the group. The consumer brings it, and the other parts, as resources.
        handlers: a coroutine function, called with the record, its decoded value if there is `decode`, and `args`; or
            `by_type({...})`, `by_topic({...})`, or `batches(handler)`, whose handler gets lists.
        name: for logs, metrics and the report; the source's own by default.
        batch: how many records one fetch, and one call of a batch handler, may bring.
        concurrency: most calls at once. With batches, each has partitions of its own.
        in_flight: records of one partition, from the first that is not done on, beyond which no more of it are
            fetched. 1000 by default, or four batches if that is more.
        null_keys: records without a key: "ordered" per partition, or "free" of any order.
        handler_bound: seconds that a call may take; then it is cancelled, a failed attempt unless a server hangs that
            it needs. None: any time.
        retries: when a record is tried again, and when it is given up.
        probe: asks whether what the handlers need is there, such as `lambda: db.fetchval("SELECT 1")`. Asked where a
            handler was cancelled at its bound or raised a bare `TimeoutError`, which may be an outage or not.
        dead_letters: where records go that are given up.
        retry_topic: where records wait for their next try, out of the way of those behind them. That gives up the order
            per key; without it a record waits in its place.
        starts: counts the starts of records where it outlives the process, to find one that kills it.
        deaths: after so many deaths of its process, with nothing else in hand, a record is given up; 3 at least.
        bad_input: what becomes of records that no handler can take.
        decode: makes the value of a record, such as `json_value`; what it raises is bad input.
        ready_within: seconds without getting on after which the service counts as not ready. None: never.
        bound: seconds it may take once it is told to stop; the budget's `workers` by default.
        on_drain: "cancel" has it cancelled as soon as a stop is requested, in the middle of a record.
        after: "http" has it told to stop after the HTTP drain.
        backoff: short for `retries=Retries(backoff=...)`.
        wall: seconds since the epoch, for times that other processes have written.

    Raises:
        SettingsError: an argument is wrong.
    """

    def __init__(
        self,
        source: Source,
        handlers: Handler | Routes | Batches,
        *args: Any,
        name: str | None = None,
        batch: int = 100,
        concurrency: int = 1,
        in_flight: int | None = None,
        null_keys: Literal["ordered", "free"] = "ordered",
        handler_bound: float | None = 300.0,
        retries: Retries | None = None,
        probe: Ask | None = None,
        dead_letters: SetsAside | None = None,
        retry_topic: Postpones | None = None,
        starts: CountsStarts | None = None,
        deaths: int = 3,
        bad_input: BadInput | None = None,
        decode: Decode | None = None,
        ready_within: float | None = 30.0,
        bound: float | None = None,
        on_drain: OnDrain = "finish",
        after: After = None,
        backoff: Backoff | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.name = name or source.name
        check_terms(self.name, bound, on_drain, after)
        check_count(self.name, "batch", batch)
        check_count(self.name, "concurrency", concurrency)
        if in_flight is not None:
            check_count(self.name, "in_flight", in_flight)
        if handler_bound is not None:
            check_seconds(self.name, "handler_bound", handler_bound, above=0.0)
        if ready_within is not None:
            check_seconds(self.name, "ready_within", ready_within, above=0.0)
        self._check(null_keys, deaths, bad_input, dead_letters, retries, backoff)
        self.bound = bound
        self.on_drain = on_drain
        self.after = after
        self.source = source
        self.terms = Terms(
            name=self.name,
            source=source,
            handlers=handlers_of(handlers, None if retry_topic is None else retry_topic.topic_of),
            args=args,
            batch=batch,
            concurrency=concurrency,
            in_flight=in_flight if in_flight is not None else max(1000, 4 * batch),
            free_nulls=null_keys == "free",
            handler_bound=handler_bound,
            retries=retries or (Retries(backoff=backoff) if backoff is not None else Retries()),
            probe=probe,
            dead_letters=dead_letters,
            retry_topic=retry_topic,
            starts=starts,
            deaths=deaths,
            bad_input=bad_input or BadInput(),
            decode=decode,
            on_drain=on_drain,
            wall=wall,
        )
        self._ready_within = ready_within
        self._consuming: Consuming | None = None
        self._stuck: HandlerStuck | None = None

    @property
    def resources(self) -> Sequence[Resource[object]]:
        """Opened in this order, closed in reverse."""
        terms = self.terms
        brought: list[Resource[object]] = [self.source]
        brought += [one for one in (terms.dead_letters, terms.retry_topic) if one is not None]
        if hasattr(terms.starts, "open"):
            brought.insert(0, cast("Resource[object]", terms.starts))
        return brought

    def why_not_ready(self, now: float) -> str | None:
        """Says so when it could not get on for `ready_within` seconds. For readiness."""
        if self._consuming is None or self._ready_within is None:
            return None
        told = [one.told(now, self._ready_within) for one in self._consuming.standstills()]
        return next((one for one in told if one is not None), None)

    async def run(self, stop: Stop) -> None:
        if self._stuck is not None:
            # Begun again beside a handler that still runs, it would do what that one does.
            raise self._stuck
        self._consuming = Consuming(self.terms, stop)
        try:
            await self._consuming.run()
        except HandlerStuck as error:
            self._stuck = error
            raise
        finally:
            self._consuming = None

    def _check(
        self,
        null_keys: str,
        deaths: int,
        bad_input: BadInput | None,
        dead_letters: SetsAside | None,
        retries: Retries | None,
        backoff: Backoff | None,
    ) -> None:
        worker = f"worker {self.name!r}"
        if null_keys not in ("ordered", "free"):
            raise SettingsError(f'{worker}: null_keys: got {null_keys!r}, takes "ordered" or "free"')
        if deaths < 3:
            raise SettingsError(
                f"{worker}: deaths: got {deaths!r}, takes a whole number, 3 or more: a process dies of other things too"
            )
        if retries is not None and backoff is not None:
            raise SettingsError(f"{worker}: backoff: got one beside retries, takes it as Retries(backoff=...)")
        if bad_input is not None and dead_letters is None and bad_input.wants_dead_letters:
            raise SettingsError(
                f'{worker}: bad_input: got "dead_letter" without dead_letters=, takes somewhere to put it'
            )
