"""Workers inside a service: what a stop, a deadline, an abort and a failure do to them and to what they hold."""

import asyncio
import queue
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from quiesce import Budget, Consumer, Restart, Service, Stop, critical, critical_in_thread, running, service
from quiesce.errors import SettingsError
from quiesce.inbox.record import Record, TopicPartition
from quiesce.lifecycle.backoff import Backoff
from quiesce.lifecycle.events import Event, WorkerBegan, WorkerEnded, WorkerRestarted
from quiesce.lifecycle.report import ShutdownReport
from quiesce.testing.memory_source import MemoryGroup, MemorySource

QUICK = Budget(grace_period=8, prestop=0, http=1, workers=0.5, producers=1, pools=1, report=0.2, margin=0.2)
AT_ONCE = Backoff(first=0.01, ceiling=0.01)


class Told:
    """Remembers the service's events."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def observe(self, event: Event) -> None:
        self.events.append(event)


async def until(condition: Any, within: float = 5.0) -> None:
    async with asyncio.timeout(within):
        while not condition():
            await asyncio.sleep(0.005)


def outcomes(report: ShutdownReport) -> dict[str, str]:
    return {worker.worker: worker.outcome for worker in report.workers}


@asynccontextmanager
async def pool(order: list[str]) -> AsyncIterator[None]:
    yield
    order.append("closed pool")


async def test_s1_an_abort_is_no_outcome_nothing_is_committed_and_the_record_comes_again() -> None:
    group = MemoryGroup(partitions=1)
    group.append(0, b"first", b"second")
    began: list[bytes | None] = []

    async def hangs_on_the_second(record: Record) -> None:
        began.append(record.value)
        if record.value == b"second":
            await asyncio.sleep(3600)

    def orders(handler: Any) -> Any:
        @service("orders", budget=QUICK)
        async def start(s: Service) -> None:
            s.run(Consumer(MemorySource(group), handler, name="orders"))

        return start

    async with running(orders(hangs_on_the_second)) as s:
        await until(lambda: len(began) == 2)
        report = await s.stop()
    assert group.committed == {TopicPartition("events", 0): 1}, "the handled one, and not the one in hand"
    assert outcomes(report) == {"orders": "aborted"}
    assert [(a.worker, a.what, a.count) for a in report.abandoned] == [("orders", "records of the batch in hand", 1)]
    assert report.exit_code == 75

    again: list[bytes | None] = []

    async def handles(record: Record) -> None:
        again.append(record.value)

    async with running(orders(handles)):
        await until(lambda: again)
    assert again == [b"second"]
    assert group.committed == {TopicPartition("events", 0): 2}


async def test_s1_code_that_acknowledges_can_tell_an_abort_from_a_failure() -> None:
    acks: list[str] = []

    async def delivers(stop: Stop) -> None:
        with stop.begin("message") or pytest.fail("refused"):
            try:
                await asyncio.sleep(3600)
            except BaseException as error:
                # What a framework's ack code does: any exception is a failed handler, unless it asks.
                acks.append("none" if stop.aborted else "reject")
                acks.append((str(error) == stop.abort_cause and "with its cause") or "without a cause")
                raise

    @service("mail", budget=QUICK)
    async def mail(s: Service) -> None:
        s.loop(delivers)

    async with running(mail) as s:
        await asyncio.sleep(0)
        report = await s.stop()
    assert acks == ["none", "with its cause"]
    assert [worker.error for worker in report.workers] == ["its time is over"]
    assert outcomes(report) == {"delivers": "aborted"}


JOBS = """
create table job (id int primary key, taken_by text, runs int not null default 0, done boolean not null default false);
insert into job (id) values (1);
"""
TAKE = "update job set taken_by = 'us' where id = (select id from job where taken_by is null limit 1) returning id"


@pytest.mark.parametrize("stop_at", range(1, 9))
async def test_s8_a_row_whose_claim_is_being_committed_at_the_stop_is_run(database: str, stop_at: int) -> None:
    """The claim and the run are one critical section; the stop, and the cancel with it, come at each of its steps."""
    db = await asyncpg.connect(database)
    await db.execute(JOBS)
    step = 0

    def reached() -> None:
        nonlocal step
        step += 1
        if step == stop_at:
            asyncio.get_running_loop().call_soon(at_the_step.set_result, None)

    at_the_step: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def claim_and_run() -> None:
        reached()
        async with db.transaction():
            reached()
            claimed = await db.fetchval(TAKE)
            reached()
        reached()
        if claimed is not None:
            await asyncio.sleep(0)
            reached()
            await db.execute("update job set runs = runs + 1, done = true where id = $1", claimed)
            reached()

    async def takes_jobs(stop: Stop) -> None:
        async for _ in stop.every(0.001):
            await critical("claim and run", claim_and_run)

    @service("jobs", budget=QUICK)
    async def jobs(s: Service) -> None:
        s.loop(takes_jobs, on_drain="cancel")

    async with running(jobs) as s:
        async with asyncio.timeout(5):
            await at_the_step
        await s.stop()
    row = await db.fetchrow("select * from job")
    await db.close()
    assert row is not None
    # Run once, or never taken: with the stop before its transaction the section still goes to its end.
    assert (row["taken_by"], row["runs"], row["done"]) == ("us", 1, True)


@pytest.mark.parametrize("is_async", [True, False])
async def test_s8_a_claimed_row_whose_run_does_not_end_is_handed_back_at_the_deadline(
    database: str, is_async: bool
) -> None:
    db = await asyncpg.connect(database)
    await db.execute(JOBS)
    claimed = asyncio.Event()
    calls: list[asyncpg.Connection] = []

    async def takes_jobs(stop: Stop, db: asyncpg.Connection) -> None:
        async for _ in stop.every(1):
            await critical("claim", db.fetchval, TAKE)
            claimed.set()
            await asyncio.sleep(3600)

    async def give_back(db: asyncpg.Connection) -> None:
        calls.append(db)
        await db.execute("update job set taken_by = null where taken_by = 'us' and not done")

    def give_back_later(db: asyncpg.Connection) -> object:
        return give_back(db)

    @service("jobs", budget=QUICK)
    async def jobs(s: Service) -> None:
        s.loop(takes_jobs, db, hand_back=give_back if is_async else give_back_later)

    async with running(jobs) as s:
        await until(claimed.is_set)
        report = await s.stop()
    assert calls == [db]
    assert await db.fetchval("select count(*) from job where taken_by is null and runs = 0") == 1
    await db.close()
    assert outcomes(report) == {"takes_jobs": "handed back"}
    assert [(a.worker, a.what) for a in report.abandoned] == [("takes_jobs", "iteration handed back")]
    assert report.exit_code == 75


async def test_a_hand_back_is_bounded_and_its_failure_named_and_without_work_in_hand_there_is_none() -> None:
    calls: list[str] = []
    began: list[str] = []

    async def in_hand(stop: Stop) -> None:
        async for _ in stop.every(1):
            began.append("in hand")
            await asyncio.sleep(3600)

    async def idle(stop: Stop) -> None:
        async for _ in stop.every(1):
            break
        # Its iteration is over, and it does not heed the stop.
        began.append("idle")
        await stop.wait()
        async for _ in stop.every(1):
            pass
        await asyncio.sleep(3600)

    async def hangs() -> None:
        calls.append("hangs")
        await asyncio.sleep(3600)

    def fails() -> None:
        calls.append("fails")
        raise ZeroDivisionError("no way back")

    @service("jobs", budget=QUICK)
    async def jobs(s: Service) -> None:
        s.loop(in_hand, name="hangs", hand_back=hangs)
        s.loop(in_hand, name="fails", hand_back=fails)
        s.loop(idle, name="idle", hand_back=lambda: calls.append("idle"))

    async with running(jobs) as s:
        await until(lambda: len(began) == 3)
        report = await s.stop()
    assert sorted(calls) == ["fails", "hangs"]
    assert outcomes(report) == {"hangs": "aborted", "fails": "aborted", "idle": "aborted"}
    assert sorted(report.errors) == [
        "worker fails: hand_back: ZeroDivisionError: no way back",
        "worker hangs: hand_back: TimeoutError",
    ]
    assert report.seconds < 2.5


@pytest.mark.parametrize("keeps", ["payments", ["payments"], "all"])
async def test_s12_a_heartbeat_beats_until_the_work_it_protects_is_over(keeps: Any) -> None:
    order: list[str] = []
    loop = asyncio.get_running_loop()
    beats: list[float] = []

    async def heartbeat() -> None:
        beats.append(loop.time())
        order.append("beat")

    async def payments(stop: Stop) -> None:
        await stop.wait()
        order.append("told to stop")
        await asyncio.sleep(0.3)
        order.append("paid")

    @service("payments", budget=QUICK)
    async def start(s: Service) -> None:
        await s.open(pool(order), name="pool")
        s.every(0.02, heartbeat, keeps=keeps)
        s.loop(payments)

    async with running(start) as s:
        await until(lambda: beats)
        report = await s.stop()
    told, paid = order.index("told to stop"), order.index("paid")
    assert order[told:paid].count("beat") >= 5, "another worker would have taken it for dead"
    assert "beat" not in order[paid + 1 :], "and it ends with the work, before the pool"
    assert report.exit_code == 0
    assert outcomes(report) == {"heartbeat": "finished", "payments": "finished"}
    ended = {worker.worker: worker.ended_at or 0.0 for worker in report.workers}
    assert ended["heartbeat"] >= ended["payments"]


async def test_s12_in_an_abort_the_heartbeat_ends_after_the_work_it_protects() -> None:
    order: list[str] = []
    paying = asyncio.Event()

    async def heartbeat(stop: Stop) -> None:
        await stop.wait()
        order.append("heartbeat told")

    async def payments(stop: Stop) -> None:
        try:
            paying.set()
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            await asyncio.sleep(0.1)  # it cleans up
            order.append("payments gone")
            raise

    @service("payments", budget=QUICK)
    async def start(s: Service) -> None:
        s.loop(heartbeat, keeps="payments")
        s.loop(payments)

    async with running(start) as s:
        await until(paying.is_set)
        report = await s.stop()
    assert order == ["payments gone", "heartbeat told"]
    assert outcomes(report) == {"heartbeat": "finished", "payments": "aborted"}


async def test_s13_the_channel_that_acks_is_open_until_the_last_task_has_ended() -> None:
    acks: asyncio.Queue[tuple[str, asyncio.Future[None]]] = asyncio.Queue()
    acked: list[str] = []
    began: list[str] = []

    async def channel(stop: Stop) -> None:
        while (ack := await stop.or_stop(acks.get())) is not None:
            acked.append(ack[0])
            ack[1].set_result(None)

    async def ack(task: str) -> None:
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        acks.put_nowait((task, answered))
        await answered

    async def run(task: str) -> None:
        began.append(task)
        await asyncio.sleep(0.2)  # it ends well, in the drain
        await ack(task)

    async def tasks(stop: Stop, name: str) -> None:
        async for _ in stop.every(10):
            await critical("task and ack", run, name)

    @service("tasks", budget=QUICK)
    async def start(s: Service) -> None:
        s.loop(channel, keeps=["one", "two"])
        s.loop(tasks, "a", name="one")
        s.loop(tasks, "b", name="two")

    async with running(start) as s:
        await until(lambda: len(began) == 2)
        report = await s.stop()
    assert sorted(acked) == ["a", "b"]
    assert report.exit_code == 0


async def test_s27_a_stop_arms_a_deadline_and_does_not_cancel_the_mail_that_is_on_its_way(database: str) -> None:
    received: list[bytes] = []
    in_the_call = asyncio.Event()

    async def mail_server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(await reader.readline())
        in_the_call.set()
        await asyncio.sleep(0.2)  # it has the mail, and takes its time to say so
        writer.write(b"250 queued\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(mail_server, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    db = await asyncpg.connect(database)
    await db.execute("create table mail (id int primary key, sent boolean not null default false)")
    await db.execute("insert into mail (id) values (1), (2)")
    left: list[float] = []

    async def deliver(stop: Stop) -> None:
        async for _ in stop.every(0.01):
            number = await db.fetchval("select id from mail where not sent order by id limit 1")
            if number is None:
                continue
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"mail %d\r\n" % number)
            assert (await reader.readline()).startswith(b"250")
            left.append(stop.remaining())
            await db.execute("update mail set sent = true where id = $1", number)
            writer.close()

    @service("mail", budget=QUICK)
    async def mail(s: Service) -> None:
        s.loop(deliver)

    try:
        async with running(mail) as s:
            await until(in_the_call.is_set)
            report = await s.stop()
        assert received == [b"mail 1\r\n"], "sent once, and no further one began"
        assert await db.fetchval("select array_agg(id) from mail where sent") == [1]
        assert 0 < left[0] <= QUICK.workers
        assert report.exit_code == 0
    finally:
        server.close()
        await server.wait_closed()
        await db.close()


async def test_s31_one_slow_worker_leaves_the_others_their_time_and_the_closers_theirs() -> None:
    order: list[str] = []

    async def takes(stop: Stop, seconds: float, name: str) -> None:
        await stop.wait()
        await asyncio.sleep(seconds)
        order.append(name)

    @service("three", budget=QUICK)
    async def three(s: Service) -> None:
        await s.open(pool(order), name="pool")
        s.loop(takes, 3600, "stuck", name="stuck", bound=0.3)
        s.loop(takes, 0.1, "quick", name="quick")
        s.loop(takes, 0.8, "slow", name="slow", bound=1.5)

    async with running(three) as s:
        report = await s.stop()
    assert order == ["quick", "slow", "closed pool"]
    seconds = {worker.worker: worker.seconds or 0.0 for worker in report.workers}
    assert seconds["quick"] < 0.3
    assert seconds["stuck"] < 0.6
    assert outcomes(report) == {"stuck": "aborted", "quick": "finished", "slow": "finished"}


async def test_o26_no_queue_begins_anything_while_another_one_drains() -> None:
    began: list[tuple[str, bool]] = []
    stopping = False

    async def queue_worker(stop: Stop, name: str, seconds: float) -> None:
        async for _ in stop.every(0.001):
            began.append((name, stopping))
            await asyncio.sleep(seconds)

    @service("queues", budget=QUICK)
    async def queues(s: Service) -> None:
        for name, seconds in (("slow", 0.3), ("middle", 0.05), ("quick", 0.0)):
            s.loop(queue_worker, name, seconds, name=name)

    async with running(queues) as s:
        await until(lambda: len(began) > 20)
        stopping = True
        report = await s.stop()
    assert not [name for name, behind in began if behind]
    assert report.exit_code == 0


async def test_s19_a_thread_worker_is_woken_by_the_stop_and_its_section_holds_back_the_closers() -> None:
    order: list[str] = []
    items: queue.Queue[str | None] = queue.Queue()

    def takes(stop: Stop, name: str) -> None:
        assert threading.current_thread().name == "worker takes"
        assert threading.current_thread().daemon
        stop.on_stop(items.put, None)
        while (item := items.get(timeout=5)) is not None:
            with stop.begin("item") or pytest.fail("refused"):
                order.append(item)
        with critical_in_thread("last words"):
            stop.wait_sync(0)
            order.append(f"{name} ended")

    @service("threads", budget=QUICK)
    async def threads(s: Service) -> None:
        await s.open(pool(order), name="pool")
        s.thread(takes, "it")

    async with running(threads) as s:
        items.put("item")
        await until(lambda: order)
        report = await s.stop()
    assert order == ["item", "it ended", "closed pool"]
    assert report.seconds < 0.4
    assert outcomes(report) == {"takes": "finished"}


async def test_s19_a_thread_that_overruns_its_bound_is_told_not_torn() -> None:
    seen: list[bool] = []
    release = threading.Event()

    def late(stop: Stop) -> None:
        stop.wait_sync(5)
        while not stop.aborted:
            release.wait(0.01)
        seen.append(stop.aborted)

    @service("threads", budget=QUICK)
    async def threads(s: Service) -> None:
        s.thread(late)

    async with running(threads) as s:
        report = await s.stop()
    assert seen == [True]
    assert outcomes(report) == {"late": "finished"}
    assert 0.4 < report.seconds < 1.5
    assert report.exit_code == 0


async def test_s19_a_thread_that_does_not_end_is_left_behind_and_named() -> None:
    release = threading.Event()
    order: list[str] = []

    def stuck(stop: Stop) -> None:
        release.wait(30)

    @service("threads", budget=QUICK)
    async def threads(s: Service) -> None:
        await s.open(pool(order), name="pool")
        s.thread(stuck)

    try:
        async with running(threads) as s:
            report = await s.stop()
        assert outcomes(report) == {"stuck": "abandoned"}
        assert ("stuck", "iteration") in [(a.worker, a.what) for a in report.abandoned]
        assert order == ["closed pool"]
        assert report.exit_code == 75
        await until(lambda: not [t for t in asyncio.all_tasks() if "stuck" in t.get_name()])
    finally:
        release.set()


async def test_what_a_thread_raises_stops_the_service() -> None:
    def dies(stop: Stop) -> None:
        raise SystemExit(3)

    @service("threads", budget=QUICK)
    async def threads(s: Service) -> None:
        s.thread(dies)

    async with running(threads) as s:
        report = await s.stopped()
    assert report.exit_code == 1
    assert report.reason == "worker dies failed: SystemExit: 3"


async def test_terms_that_make_no_sense_are_refused() -> None:
    def plain(stop: Stop) -> None: ...

    async def coroutine(stop: Stop) -> None: ...

    async def refused(start: Any) -> str:
        with pytest.raises(SettingsError) as error:
            async with running(service("refused", budget=QUICK)(start)):
                pass
        return str(error.value)

    async def a_coroutine_as_a_thread(s: Service) -> None:
        s.thread(coroutine)

    async def keeps_nobody(s: Service) -> None:
        s.loop(coroutine, keeps="nobody")

    async def called_all(s: Service) -> None:
        s.loop(coroutine, name="all")

    assert "takes a plain one; use s.loop" in await refused(a_coroutine_as_a_thread)
    assert "keeps 'nobody', and there is no such worker" in await refused(keeps_nobody)
    assert "means every worker" in await refused(called_all)
    with pytest.raises(SettingsError, match="restart failures: got 0"):
        Restart(failures=0)
    with pytest.raises(SettingsError, match="restart within: got True"):
        Restart(within=True)


async def test_a_failed_worker_begins_again_with_each_restart_told() -> None:
    told = Told()
    runs: list[int] = []
    threads_runs: list[int] = []

    async def flaky(stop: Stop) -> None:
        runs.append(len(runs))
        async for _ in stop.every(0.01):
            if len(runs) < 3:
                raise ConnectionError("away")

    def flaky_thread(stop: Stop) -> None:
        threads_runs.append(1)
        if len(threads_runs) < 2:
            raise ConnectionError("away")
        stop.wait_sync(5)

    @service("flaky", budget=QUICK, observers=[told])
    async def start(s: Service) -> None:
        s.loop(flaky, restart=Restart(failures=5, within=60, backoff=AT_ONCE))
        s.thread(flaky_thread, restart=Restart(failures=5, within=60, backoff=AT_ONCE))

    async with running(start) as s:
        await until(lambda: len(runs) == 3 and len(threads_runs) == 2)
        report = await s.stop()
    restarts = [event for event in told.events if isinstance(event, WorkerRestarted)]
    assert [(e.failures, e.error) for e in restarts if e.worker == "flaky"] == [
        (1, "ConnectionError: away"),
        (2, "ConnectionError: away"),
    ]
    assert len([e for e in restarts if e.worker == "flaky_thread"]) == 1
    assert report.exit_code == 0
    assert len([event for event in told.events if isinstance(event, WorkerEnded)]) == 2


async def test_a_worker_that_fails_too_often_stops_the_service() -> None:
    order: list[str] = []

    async def broken(stop: Stop) -> None:
        order.append("ran")
        raise ValueError("broken")

    @service("broken", budget=QUICK)
    async def start(s: Service) -> None:
        await s.open(pool(order), name="pool")
        s.loop(broken, restart=Restart(failures=3, within=60, backoff=AT_ONCE))

    async with running(start) as s:
        report = await s.stopped()
    assert order == ["ran", "ran", "ran", "closed pool"]
    assert report.reason == "worker broken failed: ValueError: broken; given up after 3 failures within 60 s"
    assert report.exit_code == 1


async def test_a_stop_ends_the_wait_for_a_restart_and_is_clean() -> None:
    runs: list[int] = []
    told = Told()

    async def broken(stop: Stop) -> None:
        runs.append(1)
        raise ValueError("broken")

    @service("broken", budget=QUICK, observers=[told])
    async def start(s: Service) -> None:
        s.loop(broken, restart=Restart(backoff=Backoff(first=60, ceiling=60, draw=lambda: 1.0)))

    async with running(start) as s:
        await until(lambda: [event for event in told.events if isinstance(event, WorkerRestarted)])
        report = await s.stop()
    assert report.seconds < 0.4
    assert outcomes(report) == {"broken": "finished"}
    assert (len(runs), report.exit_code) == (1, 0)


async def test_a_stop_in_the_very_turn_in_which_the_workers_begin_loses_none() -> None:
    """A task that is cancelled before its first step never runs, so it must not be what says that it ended."""

    class StopsAtOnce:
        def observe(self, event: Event) -> None:
            if type(event).__name__ == "ReadinessChanged" and getattr(event, "ready", False):
                stop_it()

    async def work(stop: Stop) -> None:
        await stop.wait()

    host: list[Service] = []

    def stop_it() -> None:
        host[0].stop("at once")

    @service("brief", budget=QUICK, observers=[StopsAtOnce()])
    async def brief(s: Service) -> None:
        host.append(s)
        s.loop(work, name="cancelled", on_drain="cancel")
        s.loop(work, name="finished")

    async with running(brief) as s:
        report = await s.stopped()
    assert report.exit_code == 0
    assert report.seconds < 0.4
    assert outcomes(report) == {"cancelled": "finished", "finished": "finished"}


async def test_a_thousand_periodic_workers_drain_in_under_a_second() -> None:
    import time

    async def nothing() -> None: ...

    told = Told()

    @service("many", budget=QUICK, observers=[told])
    async def many(s: Service) -> None:
        for number in range(1000):
            s.every(60, nothing, name=f"periodic {number}")

    async with running(many) as s:
        await until(lambda: sum(isinstance(event, WorkerBegan) for event in told.events) == 1000)
        began = time.process_time()
        report = await s.stop()
        took = time.process_time() - began
    print(f"1,000 periodic workers drained in {took:.3f} s of machine time")
    assert report.exit_code == 0
    assert took < 1.0


async def test_a_worker_that_may_be_torn_abandons_nothing_whatever_it_says_itself() -> None:
    began = asyncio.Event()

    class Says:
        """As a relay does that was registered with another `on_drain` than its own."""

        name = "says"

        async def run(self, stop: Stop) -> None:
            began.set()
            try:
                await asyncio.Event().wait()
            finally:
                stop.abandon("events published without an answer", 3)

    @service("torn")
    async def torn(s: Service) -> None:
        s.run(Says(), on_drain="cancel")

    async with running(torn) as r:
        await until(began.is_set)
        report = await r.stop()
    assert report.exit_code == 0
    assert not report.abandoned
