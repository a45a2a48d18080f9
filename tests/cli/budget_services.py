"""Services that are never started: `quiesce budget` reads their budgets."""

from quiesce import Budget, Service, service


@service("small", budget=Budget(grace_period=10, prestop=0, http=3, workers=3, producers=2, pools=1, report=1))
async def small(s: Service) -> None:
    raise AssertionError("quiesce budget starts nothing")


@service("lame", budget=Budget(grace_period=60, prestop=0, lame_duck=10))
async def lame(s: Service) -> None:
    raise AssertionError("quiesce budget starts nothing")
