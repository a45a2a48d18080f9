"""The header `Idempotency-Key`: which values are keys. Follows draft-ietf-httpapi-idempotency-key-header-07."""

import re
from collections.abc import Sequence

from quiesce.errors import KeyRefused

HEADER = b"idempotency-key"
MAX_KEY = 255
"""Characters of a key."""

# RFC 9651, section 3.3.3: a string in quotes, in which only a quote and a backslash are escaped. Parameters may follow.
_STRING = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\])*)"(.*)', re.DOTALL)
_PARAMETERS = re.compile(r"(?: *; *[a-z*][a-z0-9_.*-]*(?:=[!-~]+)?)*")
# What most clients send: a UUID or another token without quotes.
_BARE = re.compile(r"[!#-+\--:<-\[\]-~]+")


def parse_key(values: Sequence[bytes], *, bare: bool = True) -> str:
    """The key in the values of the request's headers of that name.

    The draft wants a structured-field string, in double quotes. Many clients send the same without quotes; where
    `bare` is true, that counts as the same key.

    Raises:
        KeyRefused: it is no key. The message says what it takes.
    """
    takes = f'takes one string of 1 to {MAX_KEY} printable ASCII characters in double quotes, such as "8e03978e-40d5"'
    if len(values) != 1:
        raise KeyRefused(f"got {len(values)} headers Idempotency-Key, {takes}")
    text = values[0].decode("latin-1").strip(" \t")
    quoted = _STRING.fullmatch(text)
    if quoted is not None and _PARAMETERS.fullmatch(quoted[2].rstrip(" \t")):
        key = re.sub(r"\\(.)", r"\1", quoted[1])
    elif bare and _BARE.fullmatch(text):
        key = text
    else:
        raise KeyRefused(f"got {_shown(text)}, {takes}")
    if not 1 <= len(key) <= MAX_KEY:
        raise KeyRefused(f"got one of {len(key)} characters, {takes}")
    return key


def _shown(text: str) -> str:
    return ascii(text if len(text) <= 40 else text[:40] + "...")
