"""Every exception class of the package. Each says whether trying again can help: `retryable`.

This module imports nothing, so every room may raise and catch what stands here.
"""


class QuiesceError(Exception):
    """The root of all errors that this package raises on purpose."""

    retryable: bool = False
    """True where the same call may succeed later without anybody changing anything."""


class SettingsError(QuiesceError):
    """A setting is missing or wrong. One line: its name, what it got (secrets hidden), what it takes.

    A service that meets it before it has started exits with status 78.
    """


class BudgetError(SettingsError):
    """The parts of the shutdown do not fit into the grace period. The message shows the sum."""


class StartError(QuiesceError):
    """The service, or a server for tests, could not start, and waiting longer would not help."""


class PortInUse(StartError):
    """The address of the HTTP server is taken by another process."""


class SchemaMissing(StartError):
    """A table is missing. The message names the command that creates it."""


class StartInterrupted(QuiesceError):
    """A stop was requested while the service was starting: nothing further is opened."""


class IntakeClosed(QuiesceError):
    """New work was offered after the service had closed what that work needs."""


class Unavailable(QuiesceError):
    """A server cannot be reached now. An outage ends by itself, so it is never a fault of one event."""

    retryable = True


class TransactionConflict(Unavailable):
    """Another transaction was in the way: a serialization failure, or a deadlock. It may be tried again at once."""


class EnqueueError(QuiesceError, ValueError):
    """An event was refused when it was enqueued, where the caller can still act.

    The caller's transaction is untouched: it may go on or roll back.
    """


class PayloadNotSerialisable(EnqueueError):
    """The payload is neither bytes, nor text, nor None, nor something JSON can carry."""


class EventTooLarge(EnqueueError):
    """Key, payload and headers together exceed `max_event_bytes`."""


class ClaimLost(QuiesceError):
    """The transaction that held the claim has ended without us; its rows are free again.

    What was published meanwhile is published again by whoever claims the rows next.
    """

    retryable = True


class DatabaseReplaced(QuiesceError):
    """The database is not the one that the outbox's cursors were written in: restored, or failed over.

    Events would be skipped or sent again without a word. Waiting does not help: an operator decides, by
    `quiesce outbox rebase`.
    """


class PublisherDiscarded(QuiesceError):
    """The producer was given up as a whole before every event of the call had its outcome."""

    retryable = True


class CommitRefused(QuiesceError):
    """Offsets were offered under an assignment that is over. Another consumer owns the partitions now."""


class SetAsideRefused(QuiesceError):
    """A record can neither be handled nor be set aside, as the settings are. The message names the record and why."""


class KeyRefused(QuiesceError, ValueError):
    """The header `Idempotency-Key` of a request holds no key. The message says what it takes."""


class KeyLost(QuiesceError):
    """The claim on an idempotency key is over: another attempt took it after its lease, or its connection was lost.

    What the handler wrote in the transaction of the claim is rolled back.
    """

    retryable = True


class InboxRefused(QuiesceError, ValueError):
    """A mark in the inbox was refused where the caller can still act. Nothing was sent to the database."""


class TransactionAborted(QuiesceError):
    """A handler kept an error of the database to itself: the transaction was aborted by it, and all is rolled back.

    PostgreSQL answers the commit of such a transaction as if all were well. Put what may fail into a savepoint.
    """

    retryable = True


class BadEventId(InboxRefused):
    """A record has no event id that an inbox could tell it by: missing, empty, too long, or no text."""

    reason_code = "no_event_id"
    """How a consumer treats it: as bad input, by the policy for this code."""


class RecordFailed(QuiesceError):
    """A batch handler says by it which record failed: `raise RecordFailed(record) from error`."""

    def __init__(self, record: object) -> None:
        super().__init__(str(record))
        self.record = record


class BadRecord(QuiesceError):
    """A record that no handler can take, where the policy for it is to stop. The message names the record and why."""


class HandlerStuck(QuiesceError):
    """A handler was cancelled and did not end, so nobody knows what it will still do: the process has to."""
