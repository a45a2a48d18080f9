"""What every adapter of a port has to pass: one suite a port, run on our own adapters and open to yours.

A suite is a tuple of checks. Each check is a coroutine function that takes a *world*: an object that makes
what the check needs. Give your test the world of your adapter and parametrise it over the checks:

    @pytest.mark.parametrize("check", publisher.CHECKS, ids=lambda check: check.__name__)
    async def test_publisher(check, world):
        await check(world)

A check fails by AssertionError. It needs no test framework.

| suite | port | also |
| --- | --- | --- |
| `outbox_store` | `OutboxStore` | `OF_CLAIMS`, `OF_SETTLING`, `OF_SHARING`, `OF_LEAVING` |
| `publisher` | `Publisher` | `SILENCE_CHECKS`: they silence the broker, so they are not in `CHECKS` |
| `source` | `Source` | `OF_READING`, `OF_POSITIONS`, `OF_REBALANCES` |
| `asides` | `SetsAside`, `Postpones` | `SILENCE_CHECKS`, as above |
| `starts` | `CountsStarts` | |

Every `OF_...` is a part of `CHECKS`: for an adapter that is not finished yet, or to run once more in another setting.
"""
