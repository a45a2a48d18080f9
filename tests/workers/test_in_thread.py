"""A handler that blocks in a thread is waited for by whoever cancels it."""

import asyncio
import threading
import time

import pytest
from scripted_source import MemorySource, record

from quiesce.errors import HandlerStuck
from quiesce.inbox.record import Record
from quiesce.lifecycle.backoff import Backoff
from quiesce.testing.manual_stop import ManualStop
from quiesce.workers import Consumer, Retries, in_thread, tears

BOUND = 60.0


class Work:
    """Blocks a thread until it is let go."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.go = threading.Event()
        self.wrote = threading.Event()

    def __call__(self, record: Record) -> str:
        self.began.set()
        assert self.go.wait(BOUND)
        self.wrote.set()
        return "done"


async def begun(work: Work) -> None:
    until = time.monotonic() + BOUND
    while not work.began.is_set():
        assert time.monotonic() < until
        await asyncio.sleep(0.01)


async def test_it_answers_with_what_the_function_does() -> None:
    assert await in_thread(int, "11", base=2) == 3
    with pytest.raises(ValueError, match="invalid literal"):
        await in_thread(int, "x")
    assert await in_thread(threading.current_thread) is not threading.current_thread()


async def test_a_cancel_waits_for_the_thread_however_often_it_comes() -> None:
    work = Work()
    task = asyncio.create_task(in_thread(work, record(0)))
    await begun(work)
    for _ in range(3):
        task.cancel()
        for _ in range(10):
            await asyncio.sleep(0)
        assert not task.done(), "the thread goes on, and nobody waits for it"
    work.go.set()
    async with asyncio.timeout(BOUND):
        with pytest.raises(asyncio.CancelledError):
            await task
    assert work.wrote.is_set()


@pytest.mark.parametrize("ends", [True, False])
async def test_a_revoke_waits_for_the_thread_or_ends_the_consumer(monkeypatch: pytest.MonkeyPatch, ends: bool) -> None:
    monkeypatch.setattr(tears, "STUCK_AFTER", 0.2)
    work = Work()

    async def handler(record: Record) -> None:
        await in_thread(work, record)

    source = MemorySource([record(0)], revoke_bound=BOUND if ends else 0.2)
    stop = ManualStop("consumer")
    running = asyncio.create_task(Consumer(source, handler).run(stop))
    await begun(work)
    source.revoke(record(0).source)
    if ends:
        for _ in range(10):
            await asyncio.sleep(0)
        assert (1, record(0).source) not in source.done_with, "given back while its thread goes on"
        work.go.set()
        async with asyncio.timeout(BOUND):
            while (1, record(0).source) not in source.done_with:
                await asyncio.sleep(0.01)
        assert work.wrote.is_set(), "given back while its thread went on"
        stop.at(asyncio.get_running_loop().time(), within=5.0)
        async with asyncio.timeout(BOUND):
            await running
    else:
        async with asyncio.timeout(BOUND):
            with pytest.raises(HandlerStuck):
                await running
        assert not work.wrote.is_set()
        work.go.set()


async def test_no_second_try_begins_beside_the_thread_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tears, "STUCK_AFTER", BOUND)
    go, tries, running, most = threading.Event(), 0, 0, 0

    def work(_: Record) -> None:
        nonlocal tries, running, most
        tries, running = tries + 1, running + 1
        most = max(most, running)
        try:
            assert tries > 1 or go.wait(BOUND)
        finally:
            running -= 1

    async def handler(record: Record) -> None:
        await in_thread(work, record)

    source = MemorySource([record(0)])
    retries = Retries(backoff=Backoff(first=0.01, ceiling=0.01))
    stop = ManualStop("consumer")
    consuming = asyncio.create_task(Consumer(source, handler, handler_bound=0.2, retries=retries).run(stop))
    # It is cancelled at its bound, and the thread goes on.
    await asyncio.sleep(1.0)
    assert tries == 1
    go.set()
    async with asyncio.timeout(BOUND):
        while source.committed != {record(0).source: 1}:
            await asyncio.sleep(0.01)
    stop.at(asyncio.get_running_loop().time(), within=5.0)
    async with asyncio.timeout(BOUND):
        await consuming
    assert tries >= 2
    assert most == 1
