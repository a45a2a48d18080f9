"""How a claim's transaction begins, with its limits and with what its statements count on; and how large events are."""

from functools import cache

SIZE = """
coalesce(octet_length(payload), 0) + octet_length(aggregate_id) + CASE
    WHEN pg_column_size(headers) > 256 THEN octet_length(headers::text) ELSE coalesce(pg_column_size(headers), 0)
END
""".strip()
"""Bytes of an event in the relay's memory, about. The length of a large text is known without fetching it. Headers may
be stored compressed a hundredfold, so those that are not small are written out to be measured."""


@cache
def begin(server_major: int, *, statement_timeout: float, claim_bound: float) -> str:
    """Opens a claim's transaction, with its limits. Seconds.

    They are SET LOCAL, so that they hold behind a pooler that hands the session to somebody else between
    transactions. `claim_bound` is enforced by the server, so that a relay that hangs lets go of its rows.
    """
    statement = max(1, round(statement_timeout * 1000))
    claim = max(1, round(claim_bound * 1000))
    limits = {
        "statement_timeout": statement,
        "lock_timeout": 0,
        "idle_in_transaction_session_timeout": claim,
        # The statements walk an index in its order. The planner may think little of that while its statistics are
        # old, and a plan that is made anew for every page costs a quarter of a small claim.
        "enable_indexscan": "on",
        "enable_seqscan": "off",
        "enable_bitmapscan": "off",
        "enable_sort": "off",
        "jit": "off",
        "plan_cache_mode": "force_generic_plan",
        # NOT IN asks a hash table as long as the planner believes that it fits into memory. Where it does not, a
        # claim would go through all pending retries for every event.
        "hash_mem_multiplier": "64",
    }
    if server_major >= 17:
        limits["transaction_timeout"] = claim
    settings = "; ".join(f"SET LOCAL {name} = {value}" for name, value in limits.items())
    return f"BEGIN ISOLATION LEVEL READ COMMITTED; {settings}"
