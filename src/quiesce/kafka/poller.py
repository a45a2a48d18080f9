"""The thread of a producer: it serves delivery reports, and destroys the producer in the end."""

import contextlib
import threading
import time
from collections.abc import Callable
from functools import partial

from confluent_kafka import KafkaError, KafkaException, Producer

_POLL = 0.05
"""Seconds; delivery reports end a poll at once, so this only bounds how long a dropped handle lingers."""
_GATHER = 0.001
"""Seconds in which reports gather after some were served: each poll has to fight the loop for the interpreter."""
_REST = 0.25
"""Seconds between two looks while nothing is handed over: only errors may come, and they lead to nothing then."""
_RESTS_AFTER = 1.0
"""Seconds without anything handed over after which it rests."""
_BEHIND = 0.02
"""Seconds in which the report on a refused event follows the error that it leads to."""


class Poller:
    """Begins at once. `served` is called when there may have been reports; both calls come on the thread. It returns
    for how many seconds more may gather, after which it is called again; 0 where nobody waits for that."""

    def __init__(
        self, held: list[Producer], on_error: Callable[[KafkaError], None], served: Callable[[], float]
    ) -> None:
        """`held` has the one producer in it. The thread takes it out: what stands in a thread's arguments lives on
        until the thread has ended."""
        self._on_error = on_error
        self._served = served
        self._stop = threading.Event()
        self._gone = threading.Event()
        self._hurry = threading.Event()
        self._turn = threading.Event()
        self._turn.set()
        # Free while more reports need not gather. A lock, since to wait for an event costs the interpreter more than
        # to serve a report.
        self._prompt = threading.Lock()
        self._resting = False
        threading.Thread(target=self._run, args=(held,), name="quiesce-kafka-producer", daemon=True).start()

    def stand_back(self) -> None:
        """Somebody else serves the producer, often enough, until `take_over`."""
        if not self._hurry.is_set():
            self._turn.clear()

    def take_over(self) -> None:
        self._turn.set()
        self.be_prompt()

    def be_prompt(self) -> None:
        """No more reports need gather: somebody waits for one."""
        with contextlib.suppress(RuntimeError):
            # It is free already.
            self._prompt.release()

    def handed_over(self) -> None:
        """Reports are to be expected."""
        if self._resting:
            self.be_prompt()

    @property
    def hurries(self) -> bool:
        """While it does, what is handed over does not wait for a fuller batch."""
        return self._hurry.is_set()

    def hurry(self) -> None:
        self._hurry.set()
        self.take_over()

    def calm_down(self) -> None:
        self._hurry.clear()

    def stop(self) -> None:
        """Has the thread destroy the producer, once nobody else has it: its destructor may wait for brokers."""
        self._stop.set()
        self.take_over()

    def is_gone(self) -> bool:
        return self._gone.is_set()

    def _run(self, held: list[Producer]) -> None:
        producer = held.pop()
        late, busy_at = 0.0, time.monotonic()
        while not self._stop.is_set():
            if self._hurry.is_set() and len(producer):
                # `linger.ms` counts for nothing while this call lasts. It serves reports as well.
                _serve(producer, partial(producer.flush, _POLL), self._on_error)
                late = self._served()
            elif (self._turn.is_set() or self._turn.wait(_POLL)) and (
                serve_once(producer, 0.0 if late or self._rested(producer, busy_at) else _POLL, self._on_error) or late
            ):
                late, busy_at = self._served(), time.monotonic()
                if late:
                    self._prompt.acquire(timeout=late)
                else:
                    time.sleep(_GATHER)
        # The last reference, so the destructor runs here.
        del producer
        self._gone.set()

    def _rested(self, producer: Producer, busy_at: float) -> bool:
        """Waits for the next hand-over, for a while, if there has been none for long; False if it did not wait."""
        if time.monotonic() < busy_at + _RESTS_AFTER:
            return False
        # First said, then looked: whoever hands over does it the other way round.
        self._resting = True
        rested = not len(producer) and not self._stop.is_set()
        if rested:
            self._prompt.acquire(timeout=_REST)
        self._resting = False
        return rested


def serve_once(producer: Producer, timeout: float, on_error: Callable[[KafkaError], None]) -> int:
    """Serves the reports that are there, or that come within `timeout` seconds. Returns how many things it served."""
    return _serve(producer, partial(producer.poll, timeout), on_error)


def _serve(producer: Producer, call: Callable[[], int], on_error: Callable[[KafkaError], None]) -> int:
    try:
        return call()
    except KafkaException as error:
        # A fatal error comes this way and not by error_cb. The report on what it is about comes right behind it,
        # and should not be missed by the calls that it ends.
        late = time.monotonic() + _BEHIND
        while time.monotonic() < late:
            with contextlib.suppress(KafkaException):
                producer.poll(_BEHIND)
        on_error(error.args[0])
        return 1
