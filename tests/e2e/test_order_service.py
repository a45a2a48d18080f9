"""The order service as real processes: stopped, rolled and killed in the middle of a batch."""

import json
import re
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest
from scene import Scene

from quiesce.testing.kafka import LocalKafka
from quiesce.testing.kafka_address import KafkaAddress
from quiesce.testing.service_process import ServiceProcess
from quiesce_pytest import MakeTopic

EVENTS, KEYS = 3000, 300
IN_FLIGHT = 1000


@pytest.fixture
def store() -> str:
    """What the service has by default; tests of the relay's promises have both."""
    return "log"


BOTH_STORES = pytest.mark.parametrize("store", ["log", "row"])


@pytest.fixture
def scene(database: str, kafka: str, topic: MakeTopic, group: str, store: str) -> Iterator[Scene]:
    scene = Scene(database, kafka, topic("order-events"), topic("product-events"), group, store)
    yield scene
    scene.close()


def post(port: int, body: dict[str, Any], key: str | None = None) -> tuple[int, dict[str, Any]]:
    headers = {"content-type": "application/json"} | ({"idempotency-key": key} if key else {})
    request = urllib.request.Request(f"http://127.0.0.1:{port}/orders", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=10) as answer:
        return answer.status, json.loads(answer.read())


def port_of(process: ServiceProcess) -> int:
    return int(process.environment["PORT"])


@BOTH_STORES
@pytest.mark.parametrize("point", ["relay.claimed", "relay.published", "relay.settled"])
def test_sigterm_during_a_batch_loses_nothing_doubles_nothing_and_ends_with_0(scene: Scene, point: str) -> None:
    scene.enqueue(EVENTS, KEYS)
    process = scene.start(QUIESCE_CRASH=f"{point}:3:SIGTERM")
    assert process.wait(30) == 0
    assert f"crash point {point} reached" in process.text()
    stopped = scene.audit()
    assert 0 < stopped.delivered < EVENTS, "it was in the middle of it"
    assert stopped.duplicates == 0
    # What is on the topic is marked, and nothing else is: the marks came before the exit.
    assert stopped.undispatched == len(stopped.lost_events) == EVENTS - stopped.delivered
    scene.start()
    scene.wait_until_dispatched()
    done = scene.audit()
    assert (done.delivered, done.lost, done.duplicates, done.out_of_order) == (EVENTS, 0, 0, ())


@BOTH_STORES
@pytest.mark.parametrize("point", ["relay.claimed", "relay.published", "relay.settled"])
def test_sigkill_during_a_batch_loses_nothing_and_doubles_at_most_what_was_in_flight(scene: Scene, point: str) -> None:
    scene.enqueue(EVENTS, KEYS)
    process = scene.start(QUIESCE_CRASH=f"{point}:2:SIGKILL")
    assert process.wait(30) == 128 + signal.SIGKILL
    # A killed relay's rows are free at once: no lease has to run out.
    began = time.monotonic()
    scene.start()
    scene.wait_until_dispatched()
    assert time.monotonic() - began < 15
    done = scene.audit()
    assert (done.delivered, done.lost, done.out_of_order) == (EVENTS, 0, ())
    assert done.duplicates <= IN_FLIGHT
    if point == "relay.published":
        assert done.duplicates > 0, "acked and not marked: those come twice, or the kill hit elsewhere"


@BOTH_STORES
def test_two_relays_during_a_rolling_update_take_no_row_twice_and_keep_the_order_per_key(scene: Scene) -> None:
    first, second = scene.start(), scene.start()
    for process in (first, second):
        process.wait_for("readiness: ready", 20)
    written = 0
    for old in (first, second):
        new = scene.start()
        new.wait_for("readiness: ready", 20)
        gone = Event()
        with ThreadPoolExecutor() as pool:
            writing = pool.submit(_write_until, scene, gone, written)
            try:
                # In the middle of it: there is work for both when the old one is told to stop.
                _until(lambda: scene.waiting() > 0)
                old.signal()
                assert old.wait(15) == 0
            finally:
                gone.set()
            written = writing.result()
    scene.wait_until_dispatched()
    done = scene.audit()
    assert written > 1000
    assert (done.delivered, done.lost, done.duplicates, done.out_of_order) == (written, 0, 0, ())
    assert len(re.findall("stop requested: received SIGTERM", first.text() + second.text())) == 2


def test_orders_are_placed_once_per_key_expired_and_told_in_order(scene: Scene) -> None:
    process = scene.start(EXPIRE_AFTER="0.5", EXPIRE_EVERY="0.2")
    process.wait_for("readiness: ready", 20)
    port = port_of(process)
    accepted = [str(post(port, {"customer": f"c{n}", "total": n})[1]["id"]) for n in range(40)]
    once = post(port, {"customer": "c", "total": "9.50"}, key="k-1")
    again = post(port, {"customer": "c", "total": "9.50"}, key="k-1")
    assert once[0] == again[0] == 201
    assert once[1] == again[1]
    with pytest.raises(urllib.error.HTTPError, match="422"):
        post(port, {"customer": "c", "total": 1}, key="k-1")
    for customer in ("", "a\0b"):
        with pytest.raises(urllib.error.HTTPError, match="422"):
            post(port, {"customer": customer, "total": 1})
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/orders/{once[1]['id']}", timeout=5) as answer:
        assert json.loads(answer.read())["total"] == "9.50"
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/orders/999999", timeout=5)
    accepted.append(str(once[1]["id"]))
    _until(lambda: len(scene.rows()) == 2 * len(accepted))
    scene.wait_until_dispatched()
    process.signal()
    assert process.wait(15) == 0
    done = scene.audit(accepted)
    assert (done.delivered, done.lost, done.duplicates, done.out_of_order) == (82, 0, 0, ())


def test_a_shutdown_closes_producers_then_pools_after_the_last_worker_and_is_measured(scene: Scene) -> None:
    process = scene.start()
    process.wait_for("readiness: ready", 20)
    scene.enqueue(200, 10)
    with urllib.request.urlopen(f"http://127.0.0.1:{port_of(process)}/metrics", timeout=5) as answer:
        metrics = answer.read().decode()
    assert "# TYPE app_shutdown_duration_seconds histogram" in metrics
    assert "app_ready 1.0" in metrics
    process.signal()
    assert process.wait(15) == 0
    report = process.report()
    assert report is not None
    parts = [resource["part"] for resource in report["resources"]]
    # The relay's and the consumer's, those for dead letters and for starts among them.
    assert parts == ["producers"] * 3 + ["pools"] * 3
    assert report["resources"][-1]["resource"] == "postgres", "opened first, closed last"
    last_worker = max(worker["ended_at_seconds"] for worker in report["workers"])
    assert {worker["outcome"] for worker in report["workers"]} == {"finished"}
    assert "relay" in {worker["worker"] for worker in report["workers"]}
    ends = 0.0
    for resource in report["resources"]:
        assert resource["outcome"] == "clean"
        assert resource["began_at_seconds"] >= max(last_worker, ends)
        ends = resource["ended_at_seconds"]
    assert 0 < report["duration_seconds"] < report["available_seconds"]
    assert set(report["parts"]) == {"http", "workers", "producers", "pools", "report"}


def test_product_events_have_their_effect_once_and_what_cannot_be_read_blocks_nobody(scene: Scene) -> None:
    from confluent_kafka import Consumer, Producer

    dead_topic = f"{scene.product_topic}.dead"
    KafkaAddress(scene.bootstrap).create_topic(dead_topic, 1)
    process = scene.start()
    process.wait_for("readiness: ready", 20)
    producer = Producer({"bootstrap.servers": scene.bootstrap})
    # An event that comes again with its id is a duplicate, whatever is in it; a tombstone is an event.
    events = [("e1", _product(1)), ("e2", b"not json"), ("e3", _product(3)), (None, _product(8)), ("e1", _product(9))]
    for event_id, body in [*events, ("e4", _product(2)), ("e5", b'{"id": "p1"}'), ("e6", _product(4))]:
        headers: list[tuple[str, str | bytes | None]] = [] if event_id is None else [("id", event_id)]
        producer.produce(scene.product_topic, body, key=b"p1", headers=headers)
    producer.produce(scene.product_topic, None, key=b"p2", headers={"id": "e7"})
    assert producer.flush(10) == 0
    _until(lambda: [tuple(row) for row in scene.execute("SELECT id, version FROM product")] == [("p1", 4)], 30)
    marked = "SELECT event_id FROM inbox_entry WHERE consumer = 'orders' ORDER BY 1"
    _until(lambda: [row[0] for row in scene.execute(marked)] == ["e1", "e3", "e4", "e6", "e7"], 30)
    settings = {"bootstrap.servers": scene.bootstrap, "group.id": f"{scene.group}-dead"}
    dead = Consumer({**settings, "auto.offset.reset": "earliest"})
    dead.subscribe([dead_topic])
    reasons: list[object] = []
    until = time.monotonic() + 20
    while len(reasons) < 3:
        assert time.monotonic() < until, reasons
        found = [message for message in dead.consume(3, 0.5) if message.error() is None]
        reasons += [dict(message.headers() or [])["quiesce-reason"] for message in found]
    dead.close()
    assert reasons == [b"undecodable", b"no_event_id", b"undecodable"]
    process.signal()
    assert process.wait(15) == 0


def in_flight(process: ServiceProcess) -> float:
    """How many events the relay has claimed and not settled, as its metrics say."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port_of(process)}/metrics", timeout=5) as answer:
        found = re.search(r'^outbox_in_flight_events\{relay="relay"\} (\S+)$', answer.read().decode(), re.MULTILINE)
    return float(found[1]) if found else 0.0


@BOTH_STORES
@pytest.mark.xdist_group("own-kafka-1")
def test_sigterm_with_the_broker_stopped_ends_inside_the_budget_and_loses_nothing(
    database: str, group: str, own_kafka: Callable[..., LocalKafka], store: str
) -> None:
    broker = own_kafka()
    scene = Scene(database, broker.bootstrap, "orders-away", "products-away", group, store)
    try:
        broker.create_topic(scene.order_topic)
        broker.create_topic(scene.product_topic)
        process = scene.start()
        process.wait_for("readiness: ready", 20)
        scene.enqueue(300, 30)
        scene.wait_until_dispatched()
        broker.kill()
        scene.enqueue(EVENTS, KEYS, 300)
        # The relay has claims in hand that no broker answers for.
        _until(lambda: in_flight(process) > 0)
        began = time.monotonic()
        process.signal()
        status = process.wait(13)
        assert time.monotonic() - began < 12, "the whole budget of this service"
        assert status == 75, "published events without an answer were left"
        report = process.report()
        assert report is not None
        assert any(left["worker"] == "relay" for left in report["abandoned"])
        assert [resource["part"] for resource in report["resources"]][-1] == "pools"
        broker.start()
        scene.start()
        scene.wait_until_dispatched(30)
        done = scene.audit()
        assert (done.delivered, done.lost, done.out_of_order) == (EVENTS + 300, 0, ())
        assert done.duplicates <= IN_FLIGHT
    finally:
        scene.close()


def test_no_database_at_start_is_retried_with_its_reason_and_then_ends_with_1(scene: Scene) -> None:
    process = scene.start(DATABASE_URL="postgresql://orders:hidden@127.0.0.1:1/orders", START_LIMIT="2")
    port = port_of(process)
    process.wait_for(r"postgres is not available \(try 2\)", 20)
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/health/ready", timeout=5)
    assert refused.value.code == 503
    assert "postgres is not available" in json.loads(refused.value.read())["reason"]
    with pytest.raises(urllib.error.HTTPError, match="503"):
        post(port, {"customer": "c", "total": 1})
    assert process.wait(15) == 1
    text = process.text()
    assert "was not available for 2 s" in text
    assert "hidden" not in text


def test_no_broker_at_start_ends_with_1_and_the_pool_is_closed(scene: Scene) -> None:
    process = scene.start(KAFKA_BOOTSTRAP="127.0.0.1:1", START_LIMIT="6")
    assert process.wait(40) == 1
    text = process.text()
    assert "kafka-producer is not available" in text
    assert "closed postgres: clean" in text


def test_a_missing_table_names_the_command_that_creates_it(scene: Scene) -> None:
    scene.execute("DROP TABLE outbox_event")
    process = scene.start()
    assert process.wait(20) == 1
    assert "quiesce outbox schema apply" in process.text(), process.text()
    assert "Traceback" not in process.text()


def _write_until(scene: Scene, gone: Event, written: int) -> int:
    """Commits events until told, 500 at a time. Returns how many there are by then."""
    while not gone.is_set():
        scene.enqueue(500, 20, written)
        written += 500
    return written


def _product(version: int) -> bytes:
    return json.dumps({"id": "p1", "name": "Pen", "price": "1.20", "version": version}).encode()


def _until(true: Callable[[], bool], within: float = 10.0) -> None:
    until = time.monotonic() + within
    while not true():
        assert time.monotonic() < until, f"not after {within:g} s"
        time.sleep(0.05)
