"""Telling why a server could not be reached, without telling how to get in."""

import psycopg
from psycopg.conninfo import conninfo_to_dict

from quiesce.errors import QuiesceError, SettingsError, Unavailable

_EXAMPLE = "postgresql://user:password@host:5432/database"

# While connecting, libpq gives text and no code.
_REFUSED = ("password authentication failed", "no pg_hba.conf entry", "no password supplied", "permission denied")


def shown(dsn: str) -> str:
    """Where a DSN leads, without its secrets.

    Raises:
        SettingsError: it is not one.
    """
    try:
        parts = conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:
        # Not what libpq says: it may quote a piece of the password.
        raise SettingsError(f"the DSN cannot be read; takes {_EXAMPLE}") from None
    host, port = parts.get("host") or "its socket", parts.get("port") or 5432
    return f"PostgreSQL at {host}:{port}, database {parts.get('dbname') or 'by default'}"


def why_not_connected(error: psycopg.Error, name: str, where: str) -> QuiesceError:
    """What a failed connect means: `Unavailable` where waiting helps, `SettingsError` where it does not."""
    told = " ".join(str(error).split())
    if any(text in told for text in _REFUSED) or ("role" in told and "does not exist" in told):
        return SettingsError(f"{name}: {where} refuses the user: {told}. Takes a user who may connect")
    if "database" in told and "does not exist" in told:
        return SettingsError(f"{name}: {where} has no such database: {told}. Takes one that exists")
    if isinstance(error, psycopg.ProgrammingError) or "invalid connection option" in told:
        return SettingsError(f"{name}: {where} cannot be used: {told}")
    return Unavailable(f"{name}: {where} cannot be reached now: {told}")
