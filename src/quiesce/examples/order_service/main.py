"""The service in one function, read from top to bottom. Stopping is its lines backwards.

Run it: `quiesce run quiesce.examples.order_service.main:orders`
"""

from fastapi import FastAPI

from quiesce import Budget, Consumer, Relay, Service, service
from quiesce.examples.order_service.cleaner import expire_orders
from quiesce.examples.order_service.products import on_product
from quiesce.examples.order_service.routes import add_routes
from quiesce.examples.order_service.schema import require
from quiesce.examples.order_service.settings import Settings
from quiesce.kafka import KafkaPublisher, KafkaSource
from quiesce.metrics import PrometheusMetrics
from quiesce.postgres import OutboxLog, OutboxRows, OutboxWatch, open_pool, prune


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
    add_routes(app, db, cfg.order_topic)

    outbox = OutboxLog(cfg.relay_dsn) if cfg.outbox_store == "log" else OutboxRows(cfg.relay_dsn)
    s.run(Relay(outbox, KafkaPublisher(cfg.kafka_bootstrap)))
    s.run(Consumer(KafkaSource(cfg.consumer, cfg.product_topic, group=cfg.consumer_group), on_product, db))
    # Tearing it loses nothing: the next replica finds the same expired orders.
    s.every(cfg.expire_every, expire_orders, db, cfg.expire_after, cfg.order_topic, on_drain="cancel")
    s.every(cfg.prune_every, prune, db, cfg.keep_dispatched, on_drain="cancel")
    s.run(OutboxWatch(db))  # for the metrics


if __name__ == "__main__":
    orders.main()
