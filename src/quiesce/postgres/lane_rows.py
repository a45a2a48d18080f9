"""The rows of lanes as they are now, found past none of their former versions.

Each settle leaves a former version behind. While a forgotten transaction holds xmin none of them can be cleaned up, so
there may be millions, and a look-up by lane walks over all of them. The index `outbox_lane_newest` has `(lane, epoch)`,
and a B-tree keeps equal entries in the order of the places that they lead to. New versions are put behind old ones as
long as nothing is cleaned up. So, from the end, the present version comes first.
"""


def newest(lane: str) -> str:
    """A subquery: the row of one lane, with its place. `lane` is an expression of SQL."""
    newest_first = f"WHERE l.lane = {lane} ORDER BY l.epoch DESC LIMIT 1"
    return f"(SELECT l.*, l.ctid AS place FROM outbox_lane AS l {newest_first})"  # noqa: S608 - a piece of our own


_NUMBERED = "generate_series(0, 15) AS numbered (lane)"
EVERY = f"(SELECT one.* FROM {_NUMBERED} CROSS JOIN LATERAL {newest('numbered.lane')} AS one)"  # noqa: S608 - ours
"""A subquery: the rows of all lanes."""
