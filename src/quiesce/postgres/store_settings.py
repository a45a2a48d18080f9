"""What stores and lanes take as settings: whole numbers of something, and seconds within reason."""

from quiesce.errors import SettingsError

_A_DAY = 86_400.0


def take_numbers(name: str, **settings: int) -> None:
    """Raises SettingsError for one below 1. `name` is what the message calls whoever is set."""
    for setting, number in settings.items():
        if number < 1:
            raise SettingsError(f"{name}: got {setting} {number}, takes 1 or more")


def take_seconds(name: str, **settings: float) -> None:
    """Raises SettingsError for one that is not above 0 and below a day."""
    for setting, seconds in settings.items():
        if not 0 < seconds < _A_DAY:
            raise SettingsError(f"{name}: got {setting} {seconds}, takes seconds above 0 and below a day")
