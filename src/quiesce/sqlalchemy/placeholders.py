"""The shared statements in SQLAlchemy's words."""

import re


def named(sql: str) -> str:
    """`$1`-style SQL as SQLAlchemy's `text` takes it: `:p1`. A value that is cast keeps its cast, as `CAST(...)`,
    since `::` beside a name is not read as one.
    """
    casts = re.compile(r"\$(\d+)((?:::[\w\[\]]+)*)")

    def replace(found: re.Match[str]) -> str:
        value = f":p{found[1]}"
        for kind in found[2].split("::")[1:]:
            value = f"CAST({value} AS {kind})"
        return value

    return casts.sub(replace, sql).replace("::", r"\:\:")
