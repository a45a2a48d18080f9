"""Showing where a database is without showing how to get in."""

import re

_USER = re.compile(r"""(?i)(?<![\w.-])user\s*=\s*('(?:[^'\\]|\\.)*'|[^&\s]*)[&\s]?""")
_QUERY_SECRET = re.compile(r"(?i)\b((?:ssl)?pass(?:word|wd|file)?|pwd)(\s*=\s*)('(?:[^'\\]|\\.)*'|[^&\s]*)")


def redact_dsn(dsn: str) -> str:
    """The DSN with every password replaced by `***`. Takes URLs and `key=value` DSNs, malformed ones too.

    A password with an unescaped `@`, `/` or `?` makes the DSN ambiguous; then more is hidden than need be.
    """
    scheme, found, rest = dsn.partition("://")
    if not found:
        # Nothing that anybody takes, and a password all the same.
        scheme, rest = "", dsn
    if "@" in rest:
        # The last @ of all, not the first: whatever stands before it may be part of a password.
        access, _, where = rest.rpartition("@")
        user, has_password, _ = access.partition(":")
        rest = f"{user}:***@{where}" if has_password else f"{access}@{where}"
    shown = f"{scheme}{found}{rest}"
    return _QUERY_SECRET.sub(r"\1\2***", shown)


def without_user(shown: str) -> str:
    """A DSN without the user, and without the password. Takes what `redact_dsn` gives."""
    scheme, found, rest = shown.partition("://")
    if found:
        rest = rest.rpartition("@")[2]
    return _USER.sub("", f"{scheme}{found}{rest}")
