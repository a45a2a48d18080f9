"""What both kinds of pool are made from."""

from typing import Any

from psycopg_pool import PoolTimeout

from quiesce.errors import SettingsError, Unavailable
from quiesce.lifecycle.phases import Part
from quiesce.psycopg.connecting import shown

_PROBES = {"keepalives_idle": 15, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 30_000}
"""A connection whose server has vanished without a word is noticed within half a minute."""


class Settings:
    """What both pools are made from."""

    def __init__(
        self,
        dsn: str,
        name: str,
        min_size: int,
        max_size: int,
        part: Part,
        connect_timeout: float,
        settings: dict[str, Any],
    ) -> None:
        if not 0 <= min_size <= max_size or max_size < 1:
            raise SettingsError(
                f"{name}: got min_size {min_size} and max_size {max_size}, takes 0 <= min_size <= max_size"
            )
        self.where = shown(dsn)
        self.dsn = dsn
        self.name = name
        self.part = part
        self.timeout = connect_timeout
        # libpq counts whole seconds, and takes less than two for two.
        own: dict[str, Any] = dict(settings.pop("kwargs", None) or {})
        self.options: dict[str, Any] = {"connect_timeout": max(2, round(connect_timeout)), **_PROBES, **own}
        self.pool: dict[str, Any] = {
            "min_size": min_size,
            "max_size": max_size,
            "name": name,
            **settings,
            "kwargs": self.options,
            "open": False,
        }

    def timed_out(self, error: PoolTimeout) -> Unavailable:
        return Unavailable(f"{self.name}: {self.where} gave no {self.pool['min_size']} connection(s) in time: {error}")
