"""Telling why a server could not be reached, whatever the driver."""

from sqlalchemy.exc import DBAPIError

from quiesce.errors import QuiesceError, SettingsError, Unavailable

_REFUSED = ("password authentication failed", "no pg_hba.conf entry", "no password supplied")


def why_not_connected(error: BaseException, name: str, where: str) -> QuiesceError | None:
    """What a failed connect means: `Unavailable` where waiting helps, `SettingsError` where it does not.

    None for an error that says nothing about the server. Some drivers' errors come wrapped and some do not.
    """
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    state = str(getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None) or "")
    told = " ".join(str(cause).split()) or type(cause).__name__
    missing = "does not exist" in told
    if state.startswith("28") or any(text in told for text in _REFUSED) or ("role" in told and missing):
        return SettingsError(f"{name}: {where} refuses the user: {told}. Takes a user who may connect")
    if state == "3D000" or ("database" in told and missing):
        return SettingsError(f"{name}: {where} has no such database: {told}. Takes one that exists")
    if isinstance(cause, TimeoutError):
        return Unavailable(f"{name}: {where} did not answer in time")
    if state or isinstance(cause, OSError) or isinstance(error, DBAPIError):
        return Unavailable(f"{name}: {where} cannot be reached now: {told}")
    return None
