"""Readiness: its policy in the drain, and the progress of workers."""

import asyncio
import json
from typing import Any, Literal

import pytest
from http_scene import ask, scene

from quiesce import Budget, Relay, Restart, Service, Stop, running, service
from quiesce.errors import SettingsError
from quiesce.lifecycle.events import Event, ReadinessChanged
from quiesce.lifecycle.phases import Phase
from quiesce.supervisor.readiness import Readiness
from quiesce.testing.memory_outbox import MemoryOutbox, MemoryTable
from quiesce.testing.memory_publisher import MemoryBroker, MemoryPublisher

READY = b"GET /health/ready HTTP/1.1\r\nHost: x\r\n\r\n"


def parsed(got: bytes) -> tuple[int, dict[str, Any]]:
    head, _, body = got.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


@pytest.mark.parametrize("policy", [503, 200])
async def test_s21_the_policy_decides_the_status_in_the_drain_and_the_body_has_the_reason(
    policy: Literal[503, 200],
) -> None:
    async with scene(while_draining=policy) as served:
        client = served.client()
        assert parsed(await ask(client, READY)) == (
            200,
            {"status": "ready", "reason": "ready", "phase": "running"},
        )
        served.stop()
        got = await ask(client, READY)
        assert parsed(got) == (policy, {"status": "draining", "reason": "a test", "phase": "draining"})
        assert b"connection: close" in got.lower()
        client.close()


async def test_s21_before_the_start_is_over_no_policy_makes_it_ready() -> None:
    async with scene(while_draining=200) as served:
        served.readiness.phase = Phase.STARTING
        served.readiness.become_not_ready("the database is not available")
        client = served.client()
        status, body = parsed(await ask(client, READY))
        assert status == 503
        assert body == {"status": "not ready", "reason": "the database is not available", "phase": "starting"}
        status, body = parsed(await ask(client, READY.replace(b"/health/ready", b"/orders")))
        assert status == 503
        client.close()


async def test_s21_a_policy_that_does_not_exist_is_refused() -> None:
    @service("bad", budget=Budget())
    async def bad(s: Service) -> None:
        s.http(None, host="127.0.0.1", port=0, readiness_while_draining=204)  # type: ignore[arg-type]  # the point

    with pytest.raises(SettingsError, match="takes 503 or 200"):
        async with running(bad):
            pass


class Standstill:
    """A worker that can be told to say why it does not get on."""

    name = "mover"

    def __init__(self) -> None:
        self.why: str | None = None

    def why_not_ready(self, now: float) -> str | None:
        if self.why == "broken":
            raise RuntimeError("no clock")
        return self.why

    async def run(self, stop: Stop) -> None:
        await stop.wait()


async def test_o24_readiness_shows_the_progress_of_a_worker_and_not_its_existence() -> None:
    mover = Standstill()

    @service("orders", budget=Budget())
    async def orders(s: Service) -> None:
        s.http(None, host="127.0.0.1", port=0)
        s.run(mover)

    async with running(orders) as s:
        runner = s._runner
        assert runner.start.gate is not None
        assert runner.start.gate.look()
        mover.why = "no answer for 40 s"
        assert not runner.start.gate.look()
        assert runner.readiness.reason == "worker mover: no answer for 40 s"
        mover.why = "broken"
        assert not runner.start.gate.look()
        assert "cannot say whether it makes progress: RuntimeError: no clock" in runner.readiness.reason
        mover.why = None
        assert runner.start.gate.look()


def test_o24_a_worker_that_is_down_makes_the_service_not_ready_until_it_is_up_again() -> None:
    told: list[Event] = []
    readiness = Readiness(told.append)
    readiness.worker_down("relay", "before the start is over it changes nothing")
    readiness.worker_up("relay")
    readiness.become_ready()
    readiness.worker_down("relay", "failed, runs again in 2 s")
    assert (readiness.ready, readiness.reason) == (False, "worker relay: failed, runs again in 2 s")
    readiness.worker_up("relay")
    assert (readiness.ready, readiness.reason) == (True, "ready")
    readiness.worker_down("relay", "failed")
    readiness.become_not_ready("received SIGTERM")
    readiness.worker_up("relay")
    assert (readiness.ready, readiness.reason) == (False, "received SIGTERM")
    changes = [(event.ready, event.reason) for event in told if isinstance(event, ReadinessChanged)]
    assert changes == [
        (True, "ready"),
        (False, "worker relay: failed, runs again in 2 s"),
        (True, "ready"),
        (False, "worker relay: failed"),
        (False, "received SIGTERM"),
    ]


def relay_that(ready_within: float | None) -> Relay:
    return Relay(MemoryOutbox(MemoryTable()), MemoryPublisher(MemoryBroker()), ready_within=ready_within)


def test_o24_a_relay_that_stands_still_says_so_and_one_without_work_does_not() -> None:
    relay = relay_that(30)
    assert relay.why_not_ready(1000.0) is None, "nothing waits"
    relay.progress.claimed(1000.0)
    assert relay.why_not_ready(1029.0) is None
    assert relay.why_not_ready(1031.0) == "no progress for 31 s: no answer for what was published"
    relay.progress.answered(1031.0, others_wait=True)
    assert relay.why_not_ready(1032.0) is None
    relay.progress.nothing_waits()
    relay.progress.outage, relay.progress.outage_since = "broker", 1032.0
    assert relay.why_not_ready(1063.0) == "no progress for 31 s: the broker is away"
    never = relay_that(None)
    never.progress.claimed(0.0)
    assert never.why_not_ready(1e6) is None
    with pytest.raises(SettingsError, match="ready_within"):
        relay_that(0)


async def test_the_metric_follows_without_a_probe() -> None:
    """Nobody may ask `/health/ready`; the gauge must fall all the same."""
    mover = Standstill()
    fell = asyncio.Event()

    class Watches:
        def observe(self, event: Event) -> None:
            if isinstance(event, ReadinessChanged) and not event.ready:
                fell.set()

    @service("orders", budget=Budget(), observers=[Watches()])
    async def orders(s: Service) -> None:
        s.http(None, host="127.0.0.1", port=0)
        s.run(mover)

    async with running(orders):
        mover.why = "stuck"
        async with asyncio.timeout(3):
            await fell.wait()


async def test_o24_a_worker_that_died_makes_the_service_not_ready_until_it_begins_again() -> None:
    told: list[tuple[bool, str]] = []
    ready_again = asyncio.Event()

    class Watches:
        def observe(self, event: Event) -> None:
            if isinstance(event, ReadinessChanged):
                told.append((event.ready, event.reason))
                if event.ready and len(told) > 1:
                    ready_again.set()

    tries: list[int] = []

    async def mover(stop: Stop) -> None:
        tries.append(1)
        if len(tries) == 1:
            raise ValueError("no luck")
        await stop.wait()

    @service("orders", budget=Budget(), observers=[Watches()])
    async def orders(s: Service) -> None:
        s.loop(mover, restart=Restart())

    async with running(orders):
        async with asyncio.timeout(3):
            await ready_again.wait()
    assert [ready for ready, _ in told[:3]] == [True, False, True]
    assert "worker mover: failed, begins again in" in told[1][1]
    assert "ValueError: no luck" in told[1][1]
