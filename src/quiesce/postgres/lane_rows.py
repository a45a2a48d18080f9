"""The rows of lanes as they are now, found past none of their former versions.

Each settle leaves a former version behind. While a forgotten transaction holds xmin none of them can be cleaned up, so
there may be millions, and a look-up by lane walks over all of them. So the primary key is `(lane, version)`, and the
owner of a lane raises `version` from time to time: the present row has the highest, and few former ones have the same.
"""


def newest(lane: str) -> str:
    """A subquery: the row of one lane. `lane` is an expression of SQL."""
    newest_first = f"WHERE l.lane = {lane} ORDER BY l.version DESC LIMIT 1"
    return f"(SELECT l.* FROM outbox_lane AS l {newest_first})"  # noqa: S608 - a piece of our own


_NUMBERED = "generate_series(0, 15) AS numbered (lane)"
EVERY = f"(SELECT one.* FROM {_NUMBERED} CROSS JOIN LATERAL {newest('numbered.lane')} AS one)"  # noqa: S608 - ours
"""A subquery: the rows of all lanes."""
