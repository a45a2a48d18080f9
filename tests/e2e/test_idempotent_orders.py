"""`POST /orders` and payments of the order service as real processes that are killed at the worst instants."""

import json
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException

import pytest
from scene import Scene

from quiesce.drill.payment_endpoint import PaymentEndpoint
from quiesce.testing.service_process import ServiceProcess
from quiesce_pytest import MakeTopic

BODY = json.dumps({"customer": "c", "total": "9.50"}).encode()


@pytest.fixture
def scene(database: str, kafka: str, topic: MakeTopic, group: str) -> Iterator[Scene]:
    scene = Scene(database, kafka, topic("order-events"), topic("product-events"), group)
    yield scene
    scene.close()


def post(process: ServiceProcess, key: str, body: bytes = BODY) -> tuple[int, bytes, bool]:
    """Status, body, and whether it is a replay. Raises OSError or HTTPException where the process dies meanwhile."""
    headers = {"content-type": "application/json", "idempotency-key": key}
    url = f"http://127.0.0.1:{process.environment['PORT']}/orders"
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=30) as answer:
            return answer.status, answer.read(), answer.headers.get("Idempotency-Replayed") == "true"
    except urllib.error.HTTPError as error:
        return error.code, error.read(), False


def orders(scene: Scene) -> list[str]:
    return [str(row["id"]) for row in scene.execute("SELECT id FROM orders ORDER BY id")]


def until(true: Callable[[], bool], within: float = 40.0) -> None:
    end = time.monotonic() + within
    while not true():
        assert time.monotonic() < end, f"not after {within:g} s"
        time.sleep(0.05)


STORED = {"idempotency.claimed": False, "idempotency.before_commit": False, "idempotency.committed": True}
"""Whether a process that is killed at this point leaves an order."""


def test_K35_fifty_clients_and_clients_that_retry_over_a_sigkill_get_one_order_each(scene: Scene) -> None:
    dying = {point: scene.start(QUIESCE_CRASH=f"{point}:1:SIGKILL") for point in STORED}
    living = [scene.start(POOL_SIZE="5") for _ in range(2)]
    for process in (*dying.values(), *living):
        process.wait_for("readiness: ready", 40)
    accepted: list[str] = []
    for point, process in dying.items():
        with pytest.raises((OSError, HTTPException)):
            post(process, point)
        assert process.wait(30) == 128 + signal.SIGKILL
        assert len(orders(scene)) == len(accepted) + STORED[point]
        # At once: no lease has to run out. Where the order is there already, its answer is, too.
        status, answer, replayed = post(living[0], point)
        assert (status, replayed) == (201, STORED[point])
        assert post(living[1], point) == (201, answer, True)
        accepted.append(str(json.loads(answer)["id"]))
        assert orders(scene) == accepted
    assert post(living[0], "idempotency.claimed", BODY.replace(b"9.50", b"9.51"))[0] == 422

    with ThreadPoolExecutor(50) as clients:
        answers = list(clients.map(lambda n: post(living[n % 2], "fifty"), range(50)))
    assert {answer[:2] for answer in answers} == {(201, answers[0][1])}
    assert [replayed for _, _, replayed in answers].count(False) == 1
    accepted.append(str(json.loads(answers[0][1])["id"]))
    assert orders(scene) == accepted
    scene.wait_until_dispatched(40)
    done = scene.audit(accepted)
    assert (done.delivered, done.lost) == (4, 0)
    # Their relays were killed, too: each may have had the event of the order before in flight.
    assert done.duplicates <= len(dying)


def test_K45_a_payment_has_one_key_in_every_attempt_also_after_a_sigkill(scene: Scene) -> None:
    scene.execute("INSERT INTO orders (customer, total) SELECT 'c', n FROM generate_series(1, 12) AS n")
    placed = set(orders(scene))
    with PaymentEndpoint(lose_every=3) as payments:
        settings = {
            "PAYMENT_URL": payments.url,
            "PAYMENT_EVERY": "0.05",
            "PAYMENT_TIMEOUT": "1.5",
            "PAYMENT_RETRY": "0.2",
        }
        points = ("payment.decided", "payment.charged")
        dying = [scene.start(QUIESCE_CRASH=f"{point}:2:SIGKILL", **settings) for point in points]
        assert [process.wait(50) for process in dying] == [128 + signal.SIGKILL] * 2
        left = scene.start(**settings)
        until(lambda: [row[0] for row in scene.execute("SELECT DISTINCT status FROM orders")] == ["paid"])
        left.signal()
        assert left.wait(20) == 0

    charges = payments.charges
    assert (charges.charged(), charges.twice(), len(charges.made)) == (placed, [], 12)
    # Each order was asked for under one key, the stored one, and some were asked for more than once.
    stored = {(str(row["order_id"]), f'"{row["key"]}"') for row in scene.execute("SELECT order_id, key FROM payment")}
    assert set(charges.asked) == stored
    assert len(charges.asked) > 12
    assert charges.lost > 0
    assert scene.execute("SELECT count(*) FROM outbox_event WHERE type = 'OrderPaid'")[0][0] == 12
