"""Services for the tests of signals, hangs and telling. What they write to standard error is waited for."""

import asyncio
import contextlib
import ctypes
import os
import queue
import signal
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

from quiesce import Budget, Part, Service, Stop, critical, service
from quiesce.lifecycle.deadline import Deadline
from quiesce.lifecycle.ports import Closed

# Small shares, so that a test of a stuck thing takes a second or two.
QUICK = Budget(grace_period=6, prestop=0, http=1, workers=1, producers=1, pools=1, report=0.5, margin=0.5)
SHORT = Budget(grace_period=2.4, prestop=0, http=0.4, workers=0.4, producers=0.3, pools=0.3, report=0.4, margin=0.2)
# Long enough that nothing in it is decided by a bound.
CALM = Budget(grace_period=30, prestop=0, http=8, workers=8, producers=5, pools=5, report=2, margin=1)


def say(text: str) -> None:
    print(f"[{time.monotonic():.3f}] {text}", file=sys.stderr, flush=True)


@contextlib.asynccontextmanager
async def thing(name: str) -> AsyncIterator[str]:
    say(f"opened {name}")
    yield name
    say(f"closed {name}")


async def app(scope: Any, receive: Any, send: Any) -> None:
    assert scope["type"] == "http"
    if scope["path"] == "/never":
        say("request began")
        await asyncio.sleep(3600)  # the request hangs
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@service("quiet", budget=CALM)
async def quiet(s: Service) -> None:
    await s.open(thing("pool"), name="pool")
    s.loop(waits)
    say("started")


async def waits(stop: Stop) -> None:
    say("waiting")
    await stop.wait()  # the worker waits


# S10: one service, five reasons to stop.


@service("reasons", budget=CALM)
async def reasons(s: Service) -> None:
    s.http(app, host="127.0.0.1", port=int(os.environ.get("PORT", "0")))
    await s.open(thing("producer"), name="producer", part=Part.PRODUCERS)
    await s.open(thing("pool"), name="pool")
    s.loop(waits)
    if os.environ.get("REASON") == "stop":
        s.loop(stops, s)
    if os.environ.get("REASON") == "crash":
        s.loop(crashes)


async def stops(stop: Stop, s: Service) -> None:
    s.stop("the work is done")


async def crashes(stop: Stop) -> None:
    raise ValueError("the worker is broken")


# S22: the orchestrator has left us less time than the budget has.


@service("hurried", budget=CALM)
async def hurried(s: Service) -> None:
    await s.open(thing("pool"), name="pool")
    s.loop(sleeps_through_the_stop)
    s.loop(hurries, s)


async def hurries(stop: Stop, s: Service) -> None:
    s.stop("the preStop hook took long", within=3.0)


async def sleeps_through_the_stop(stop: Stop) -> None:
    say("sleeping")
    await asyncio.sleep(3600)


# S24: SIGTERM at any moment of the start.

MOMENTS = ("import", "before the loop", "first line", "in a", "after a", "in b", "after b", "in c", "last line", "none")


def moment(name: str) -> None:
    if os.environ.get("MOMENT") == name:
        say(f"signal at: {name}")
        os.kill(os.getpid(), signal.SIGTERM)


@contextlib.asynccontextmanager
async def slow_thing(name: str) -> AsyncIterator[str]:
    say(f"opening {name}")
    moment(f"in {name}")
    await asyncio.sleep(0.05)
    say(f"opened {name}")
    try:
        yield name
    finally:
        say(f"closed {name}")


class SignalBeforeTheLoop(asyncio.DefaultEventLoopPolicy):
    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        moment("before the loop")
        return super().new_event_loop()


@service("starts", budget=CALM)
async def starts(s: Service) -> None:
    moment("first line")
    await s.open(slow_thing("a"), name="a")
    moment("after a")
    await s.open(slow_thing("b"), name="b")
    moment("after b")
    await s.open(slow_thing("c"), name="c")
    s.loop(waits)
    moment("last line")


if os.environ.get("MOMENT"):
    asyncio.set_event_loop_policy(SignalBeforeTheLoop())
    moment("import")


# Who owns the handlers.


@service("uvicorn-inside", budget=QUICK)
async def uvicorn_inside(s: Service) -> None:
    """A user who runs uvicorn by himself, beside us."""
    await s.open(thing("pool"), name="pool")
    s.loop(serves, on_drain="cancel")


async def serves(stop: Stop) -> None:
    import uvicorn

    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_config=None, lifespan="off"))
    await server.serve()
    say("uvicorn ended")


@service("loop-handler", budget=QUICK)
async def loop_handler(s: Service) -> None:
    """The well-known recipe: stop the loop on SIGTERM."""
    await s.open(thing("pool"), name="pool")
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, loop_stops)
    s.loop(waits)


def loop_stops() -> None:
    say("the loop's handler was called")
    asyncio.get_running_loop().stop()


# Hangs.


@service("hangs", budget=QUICK)
async def hangs(s: Service) -> None:
    s.http(app, host="127.0.0.1", port=int(os.environ.get("PORT", "0")))
    await s.open(thing("pool"), name="pool")
    await s.open(StuckCloser())
    s.loop(never_ends)
    s.loop(pays)
    s.loop(asks_a_thread)


class StuckCloser:
    name = "stuck"
    part = Part.PRODUCERS

    async def open(self) -> None:
        return None

    async def close(self, deadline: Deadline) -> Closed:
        await asyncio.sleep(3600)  # the closer hangs
        return Closed()


async def never_ends(stop: Stop) -> None:
    say("never ending")
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(3600)  # the line that is to be named
    await asyncio.Event().wait()


async def pays(stop: Stop) -> None:
    await critical("charge payment", charge)


async def charge() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.sleep(3600))


async def asks_a_thread(stop: Stop) -> None:
    nothing: queue.Queue[str] = queue.Queue()
    await asyncio.to_thread(takes, nothing)


def takes(nothing: "queue.Queue[str]") -> None:
    say("getting")
    nothing.get()


@service("eats-the-cancel", budget=QUICK)
async def eats_the_cancel(s: Service) -> None:
    await s.open(thing("pool"), name="pool")
    kinds = os.environ["TASKS"].split()
    if "eats" in kinds:
        _kept.append(asyncio.create_task(eats(), name="glutton"))
    if "shielded" in kinds:
        _kept.append(asyncio.create_task(shields(asyncio.create_task(eats(), name="glutton")), name="shield"))
    _kept.append(asyncio.create_task(asyncio.sleep(3600), name="polite"))
    _kept.append(asyncio.create_task(shields(asyncio.create_task(asyncio.sleep(3600), name="polite, shielded"))))
    say("started")


_kept: list["asyncio.Task[None]"] = []


async def shields(work: "asyncio.Task[None]") -> None:
    await asyncio.shield(work)


async def eats() -> None:
    while True:
        try:
            await asyncio.sleep(3600)  # eaten
        except asyncio.CancelledError:
            say("ate a cancel")
            if os.environ.get("BLOCKING"):
                time.sleep(3600)


@service("thread-in-get", budget=SHORT)
async def thread_in_get(s: Service) -> None:
    await s.open(thing("pool"), name="pool")
    s.loop(asks_a_thread)


@service("holds-the-gil", budget=SHORT)
async def holds_the_gil(s: Service) -> None:
    s.loop(calls_c)


async def calls_c(stop: Stop) -> None:
    say("waiting")
    await stop.wait()
    say("calling C")
    # PyDLL keeps the interpreter lock during the call; CDLL lets go of it.
    library = ctypes.PyDLL(None) if os.environ.get("HOLD") else ctypes.CDLL(None)
    library.sleep(3600)


@service("mute", budget=SHORT)
async def mute(s: Service) -> None:
    """Fills its own standard error, which nobody reads, and hangs there after a stop."""
    s.loop(chokes)


async def chokes(stop: Stop) -> None:
    say("waiting")
    await stop.wait()
    while True:
        os.write(2, b"x" * 4096)


@service("asked", budget=CALM)
async def asked(s: Service) -> None:
    s.loop(waits)
    if os.environ.get("BLOCKING"):
        s.loop(blocks)


async def blocks(stop: Stop) -> None:
    say("blocking the loop")
    # C code that keeps the interpreter lock, and that no signal interrupts.
    sum(range(40_000_000))
    say("the loop goes on")


@service("holder", budget=QUICK)
async def holder(s: Service) -> None:
    from quiesce.postgres import open_pool

    pool = await s.open(open_pool(os.environ["DATABASE_URL"], name="database", min_size=1, max_size=2))
    s.loop(holds_a_connection, pool)


async def holds_a_connection(stop: Stop, pool: Any) -> None:
    async with pool.acquire():
        say("holding")
        await asyncio.sleep(3600)


@service("never-lets-go", budget=QUICK)
async def never_lets_go(s: Service) -> None:
    dsn = os.environ["DATABASE_URL"]
    take: Any
    match os.environ["ADAPTER"]:
        case "asyncpg":
            from quiesce.postgres import open_pool

            take = (await s.open(open_pool(dsn, name="database"))).acquire
        case "psycopg":
            from quiesce.psycopg import open_pool as open_psycopg_pool

            take = (await s.open(open_psycopg_pool(dsn, name="database"))).connection
        case _:
            from quiesce.sqlalchemy import open_async_engine

            url = dsn.replace("postgresql://", "postgresql+asyncpg://")
            take = (await s.open(open_async_engine(url, name="database"))).connect
    s.loop(keeps_what_it_took, take)


async def keeps_what_it_took(stop: Stop, take: Any) -> None:
    async with take():
        say("holding")
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                say("not let go")


@service("patient", budget=CALM)
async def patient(s: Service) -> None:
    s.loop(sleeps_through_the_stop)


# S29: spans that an exporter keeps back until it is flushed.


def build_traced() -> Any:
    import atexit
    import json
    from collections.abc import Sequence

    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

    from quiesce.telemetry import OpenTelemetryShutdown

    class Exporter(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            if os.environ.get("EXPORTER") == "hangs":
                time.sleep(3600)
            if os.environ.get("EXPORTER") == "raises":
                raise OSError("the collector is away")
            for span in spans:
                assert span.context is not None
                told = {
                    "name": span.name,
                    "id": span.context.span_id,
                    "parent": None if span.parent is None else span.parent.span_id,
                    "attributes": dict(span.attributes or {}),
                    "events": [{"name": e.name, "attributes": dict(e.attributes or {})} for e in span.events],
                }
                print(f"span {json.dumps(told)}", file=sys.stderr, flush=True)
            return SpanExportResult.SUCCESS

    atexit.register(say, "at exit")
    # Without a shutdown at exit of its own: what is not flushed by us is lost.
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(Exporter(), schedule_delay_millis=3_600_000))

    @service("traced", budget=QUICK, observers=[OpenTelemetryShutdown(provider)])
    async def traced(s: Service) -> None:
        await s.open(thing("pool"), name="pool")
        say("started")

    return traced


def __getattr__(name: str) -> Any:
    # Made only where it is asked for: the others need no OpenTelemetry.
    if name == "traced":
        return build_traced()
    raise AttributeError(name)
