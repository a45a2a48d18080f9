"""The crash points of the relay: the instants at which a kill hurts most."""

CLAIMED = "relay.claimed"
"""Events are claimed and not handed over yet: a crash here leaves no trace."""

PUBLISHED = "relay.published"
"""The broker has acked every event of the claim, and none is marked: a crash here makes duplicates."""

SETTLED = "relay.settled"
"""The marks are committed: a crash here must repeat nothing."""

ALL = (CLAIMED, PUBLISHED, SETTLED)
