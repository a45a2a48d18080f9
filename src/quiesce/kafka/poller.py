"""The thread of a producer: it serves delivery reports where the loop does not, and destroys the producer."""

import contextlib
import threading
import time
from collections.abc import Callable
from functools import partial

from confluent_kafka import KafkaError, KafkaException, Producer

_POLL = 0.05
"""Seconds; delivery reports end a poll at once, so this only bounds how long a dropped handle lingers."""
_IDLE = 1.0
"""Seconds between two looks whether it is its turn, which it is told at once."""
_GATHER = 0.001
"""Seconds in which reports gather after some were served: each poll has to fight the loop for the interpreter."""
_BEHIND = 0.02
"""Seconds in which the report on a refused event follows the error that it leads to."""


class Poller:
    """Begins at once, and stands by until `take_over` or `hurry`. `served` is called when there may have been reports;
    both calls come on the thread."""

    def __init__(
        self, held: list[Producer], on_error: Callable[[KafkaError], None], served: Callable[[], None]
    ) -> None:
        """`held` has the one producer in it. The thread takes it out: what stands in a thread's arguments lives on
        until the thread has ended."""
        self._on_error = on_error
        self._served = served
        self._gone = threading.Event()
        self._turn = threading.Event()
        self._stopped = False
        self._hurries = False
        self._for_good = False
        threading.Thread(target=self._run, args=(held,), name="quiesce-kafka-producer", daemon=True).start()

    @property
    def serves(self) -> bool:
        """Whether it serves the reports, so that nobody else need."""
        return self._turn.is_set()

    def take_over(self) -> None:
        """It serves them for good."""
        self._for_good = True
        self._turn.set()

    def hurry(self) -> None:
        """It serves them, and what is handed over does not wait for a fuller batch, until `calm_down`."""
        self._hurries = True
        self._turn.set()

    def calm_down(self) -> None:
        self._hurries = False
        if not self._for_good:
            self._turn.clear()

    def stop(self) -> None:
        """Has the thread destroy the producer, once nobody else has it: its destructor may wait for brokers."""
        self._stopped = True
        self._turn.set()

    def is_gone(self) -> bool:
        return self._gone.is_set()

    def _run(self, held: list[Producer]) -> None:
        producer = held.pop()
        while not self._stopped:
            if not self._turn.wait(_IDLE):
                continue
            if self._hurries and len(producer):
                # `linger.ms` counts for nothing while this call lasts. It serves reports as well.
                _serve(producer, partial(producer.flush, _POLL), self._on_error)
                self._served()
            elif not self._for_good:
                # What is to be hurried is being handed over, or what is answered heard of.
                time.sleep(_GATHER)
            elif serve_once(producer, _POLL, self._on_error):
                self._served()
                time.sleep(_GATHER)
        # The last reference, so the destructor runs here.
        del producer
        self._gone.set()


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
