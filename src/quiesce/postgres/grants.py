"""The rights that each kind of role needs, and no more. Printed, never given: whoever owns the tables decides."""

import re

from quiesce.errors import SettingsError
from quiesce.postgres.driver import AnyConnection

ROLE_KINDS = ("writer", "relay", "operator")

_RIGHTS: dict[str, tuple[tuple[str, str], ...]] = {
    # An identity needs no right to its sequence. The lane is computed by the writer, with the writer's rights.
    "writer": (("INSERT", "outbox_event"),),
    # Locking a row takes the right to update some column of it. DELETE on events is for retention.
    "relay": (
        ("SELECT", "quiesce_schema"),
        ("SELECT, UPDATE (dispatched_at, dead_at), DELETE", "outbox_event"),
        ("SELECT, INSERT, UPDATE, DELETE", "outbox_parked"),
        ("SELECT, UPDATE", "outbox_lane"),
        ("SELECT, UPDATE (store, system_identifier, timeline, database_oid, table_oid)", "outbox_control"),
    ),
    # `xid` is for `rebase`.
    "operator": (
        ("SELECT", "quiesce_schema"),
        ("SELECT, UPDATE (dead_at, xid), DELETE", "outbox_event"),
        ("SELECT, INSERT, UPDATE, DELETE", "outbox_parked"),
        ("SELECT, UPDATE", "outbox_lane"),
        ("SELECT, UPDATE", "outbox_control"),
        ("SELECT, INSERT, UPDATE (events)", "outbox_audit"),
    ),
}
_FUNCTIONS = {"relay": ("outbox_watch(smallint[], pg_snapshot[], float8, float8, float8, integer, bigint)",)}
_PLACE = """
SELECT quote_ident(n.nspname) FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.oid = 'outbox_event'::regclass
"""
_GIVEN = re.compile(rf"({'|'.join(ROLE_KINDS)})=(.+)", re.DOTALL)


def role(text: str) -> tuple[str, str]:
    """A kind and a role's name, from `kind=name`. Raises SettingsError for anything else."""
    given = _GIVEN.fullmatch(text)
    if given is None:
        raise SettingsError(f"--grants: got {text!r}, takes {'|'.join(ROLE_KINDS)}, then =, then the role's name")
    return given[1], given[2]


async def grants(connection: AnyConnection, kind: str, name: str) -> list[str]:
    """The statements for one role. The tables must be there: they tell in which schema they are."""
    place: str = await connection.fetchval(_PLACE)
    to: str = await connection.fetchval("SELECT quote_ident($1)", name)
    return [
        f"GRANT USAGE ON SCHEMA {place} TO {to};",
        *(f"GRANT {rights} ON {place}.{table} TO {to};" for rights, table in _RIGHTS[kind]),
        *(
            f"GRANT EXECUTE ON FUNCTION {place}.{function} TO {to};"
            for function in ("outbox_lane(text)", *_FUNCTIONS.get(kind, ()))
        ),
    ]
