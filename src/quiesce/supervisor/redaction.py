"""Showing what somebody set without showing how to get in. In doubt more is hidden than need be."""

import re
from collections.abc import Mapping

HIDDEN = "a value that is not shown"

_SECRET_PART = re.compile("password|passwd|passphrase|passfile|secret|token|api_?key|private|credential")
_SECRET_WORDS = frozenset({"pass", "pwd", "pw", "pin", "auth", "key", "keys", "salt"})
"""Hidden where they stand alone between underscores: `db_pwd`, and not `passenger`."""

_URL = re.compile(r"""[A-Za-z][A-Za-z0-9+.-]*://[^\s'"<>]*""")
_PAIR = re.compile(
    r"""(?x)
    \b([\w.-]+)  # a name, as in a DSN, a query, or a dictionary
    (['"]?\s*=\s*|['"]\s*:\s*)
    ('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^\s&;,'"]+)
    """
)


def is_secret(name: str) -> bool:
    """Whether a setting of this name is one whose value nobody should see."""
    name = name.lower()
    return _SECRET_PART.search(name) is not None or not _SECRET_WORDS.isdisjoint(re.split(r"[\W_]+", name))


def redacted(text: str, secrets: Mapping[str, str] | None = None) -> str:
    """The text without passwords, as far as they can be told: those of URLs and of `password=...`, and the
    values of those `secrets` whose name says what they are."""
    for name, value in (secrets or {}).items():
        # Shorter ones stand in every other word.
        if len(value) > 3 and is_secret(name):
            text = text.replace(value, "***")
    return _PAIR.sub(_without_value, _URL.sub(_without_password, text))


def _without_value(found: re.Match[str]) -> str:
    name, between, _ = found.groups()
    return f"{name}{between}***" if is_secret(name) else found[0]


def _without_password(found: re.Match[str]) -> str:
    scheme, _, rest = found[0].partition("://")
    if "@" not in rest:
        return found[0]
    # The last @ of all, not the first: whatever stands before it may be part of a password.
    access, _, where = rest.rpartition("@")
    user, has_password, _ = access.partition(":")
    if not has_password:
        # In these a name alone is a token as often as not.
        user = "***" if scheme.lower().startswith("http") else user
        return f"{scheme}://{user}@{where}"
    return f"{scheme}://{user}:***@{where}"
