"""What every adapter of a port has to pass: one suite a port, run on our own adapters and open to yours.

A suite is a tuple of checks. Each check is a coroutine function that takes a *world*: an object that makes
what the check needs. Give your test the world of your adapter and parametrise it over the checks:

    @pytest.mark.parametrize("check", publisher.CHECKS, ids=lambda check: check.__name__)
    async def test_publisher(check, world):
        await check(world)

A check fails by AssertionError. It needs no test framework.
"""
