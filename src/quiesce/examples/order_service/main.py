"""The service in one function, read from top to bottom. Stopping is its lines backwards.

Run it: `quiesce run quiesce.examples.order_service.main:orders`
"""

import aiohttp
from fastapi import FastAPI

from quiesce import Budget, Consumer, Relay, Restart, Service, service
from quiesce.examples.order_service.cleaner import expire_orders
from quiesce.examples.order_service.payments import PaymentTerms, charge_payments
from quiesce.examples.order_service.products import on_product, product_of
from quiesce.examples.order_service.routes import add_routes
from quiesce.examples.order_service.schema import require
from quiesce.examples.order_service.settings import Settings
from quiesce.kafka import KafkaDeadLetters, KafkaPublisher, KafkaSource, TopicRetention
from quiesce.kafka.dead_letters import dead_topic_of
from quiesce.metrics import PrometheusMetrics
from quiesce.postgres import (
    OutboxLog,
    OutboxRows,
    OutboxWatch,
    RecordStarts,
    once,
    open_pool,
    prune,
    prune_inbox,
    prune_keys,
)


@service(
    "order-service",
    budget=Budget(grace_period=60, prestop=10, http=25, workers=20, producers=15, pools=1),
    observers=[PrometheusMetrics()],
)
async def orders(s: Service) -> None:
    cfg = s.settings(Settings)
    app = FastAPI(title="Orders")
    s.http(app, host=cfg.host, port=cfg.port)  # health answers from here on; the rest gets 503
    db = await s.open(open_pool(cfg.database_url, max_size=cfg.pool_size))  # opened first, closed last
    await require(db)
    add_routes(app, db, cfg.order_topic, cfg.keep_keys)

    outbox = OutboxLog(cfg.relay_dsn) if cfg.outbox_store == "log" else OutboxRows(cfg.relay_dsn)
    s.run(Relay(outbox, KafkaPublisher(cfg.kafka_bootstrap)))
    products = KafkaSource(cfg.consumer, cfg.product_topic, group=cfg.consumer_group)
    handler = once(db, "orders", on_product)  # each event has its effect once, whatever comes again
    dead = KafkaDeadLetters(cfg.kafka_bootstrap)
    starts = RecordStarts(cfg.database_url)  # one that kills its process again and again is given up, too
    s.run(Consumer(products, handler, decode=product_of, dead_letters=dead, starts=starts))
    # Tearing it loses nothing: the next replica finds the same expired orders.
    s.every(cfg.expire_every, expire_orders, db, cfg.expire_after, cfg.order_topic, on_drain="cancel")
    s.every(cfg.prune_every, prune, db, cfg.keep_dispatched, on_drain="cancel")
    s.every(cfg.prune_every, prune_keys, db, on_drain="cancel")
    kept = TopicRetention(cfg.kafka_bootstrap, cfg.product_topic, dead_topic_of(cfg.product_topic))
    s.every(cfg.prune_marks_every, prune_inbox, db, cfg.keep_marks, kept, on_drain="cancel")
    if cfg.payment_url:
        timeout = aiohttp.ClientTimeout(total=cfg.payment_timeout)
        client = await s.open(aiohttp.ClientSession(timeout=timeout))
        terms = PaymentTerms(cfg.payment_url, cfg.payment_every, cfg.payment_retry, cfg.order_topic)
        # An attempt that was begun is finished: what came of it is cheaper to write down than to ask again.
        bound, restart = cfg.payment_timeout + 1, Restart(failures=20)  # a database that is away stops nothing
        s.loop(charge_payments, db, client, terms, after="http", bound=bound, restart=restart)
    s.run(OutboxWatch(db))  # for the metrics


if __name__ == "__main__":
    orders.main()
