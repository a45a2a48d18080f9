"""What the thread of a producer does: it serves delivery reports, and destroys the producer in the end."""

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
_BEHIND = 0.02
"""Seconds in which the report on a refused event follows the error that it leads to."""


def serve(
    held: list[Producer],
    stop: threading.Event,
    gone: threading.Event,
    hurry: threading.Event,
    loop_serves: threading.Event,
    on_error: Callable[[KafkaError], None],
    served: Callable[[], None],
) -> None:
    """Serves the one producer in `held` until `stop`, and sets `gone` once it is destroyed. `hurry`: what is handed
    over does not wait for a fuller batch. `loop_serves`: somebody else serves it meanwhile. `served` is called when
    there may have been reports."""
    producer = held.pop()
    while not stop.is_set():
        if hurry.is_set() and len(producer):
            # `linger.ms` counts for nothing while this call lasts. It serves reports as well.
            _serve(producer, partial(producer.flush, _POLL), on_error)
            served()
        elif loop_serves.is_set():
            time.sleep(_GATHER)
        elif serve_once(producer, _POLL, on_error):
            served()
            time.sleep(_GATHER)
    # The last reference, so the destructor runs here.
    del producer
    gone.set()


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
