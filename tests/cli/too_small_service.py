"""A service whose budget does not fit: importing it fails."""

from quiesce import Budget, Service, service


@service("too-small", budget=Budget(grace_period=30))
async def too_small(s: Service) -> None:
    raise AssertionError("quiesce budget starts nothing")
