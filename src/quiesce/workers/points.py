"""The crash points of the consumer: the instants at which a kill hurts most."""

FETCHED = "consumer.fetched"
"""Records are fetched and none has begun: a crash here leaves no trace."""

HANDLING = "consumer.handling"
"""A handler is about to run."""

HANDLED = "consumer.handled"
"""A handler has returned and no offset is committed: a crash here makes duplicates."""

COMMITTED = "consumer.committed"
"""The broker has the offsets: a crash here must repeat nothing of them."""

ALL = (FETCHED, HANDLING, HANDLED, COMMITTED)
