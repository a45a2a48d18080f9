"""The order service as `quiesce demo` runs it: its tables, its topics, and every setting of a replica."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncpg

    from quiesce.drill.replica import Recipe
    from quiesce.drill.servers import Servers

SERVICE = "quiesce.examples.order_service.main:orders"
ORDER_TOPIC = "order-events"
PRODUCT_TOPIC = "product-events"
CONSUMER = "orders"


def replica_recipe(servers: "Servers", *, store: str, payment_url: str) -> "Recipe":
    """How to run one replica. Every setting is named, so that none comes from the environment of whoever runs this."""
    from quiesce.drill.replica import Recipe

    return Recipe(
        "orders",
        SERVICE,
        {
            "DATABASE_URL": servers.dsn,
            "OUTBOX_DSN": servers.dsn,
            "OUTBOX_STORE": store,
            "POOL_SIZE": "10",
            "KAFKA_BOOTSTRAP": servers.bootstrap,
            "ORDER_TOPIC": servers.topics[ORDER_TOPIC],
            "PRODUCT_TOPIC": servers.topics[PRODUCT_TOPIC],
            "CONSUMER_GROUP": f"{CONSUMER}{servers.suffix}",
            # The embedded broker lets a member join after half its session timeout; others take six seconds and more.
            "SESSION_TIMEOUT_MS": "6000" if servers.suffix else "4000",
            "HEARTBEAT_INTERVAL_MS": "300",
            # Quick, so that most orders have a second event and their order on the topic can be checked.
            "EXPIRE_AFTER": "2",
            "EXPIRE_EVERY": "0.5",
            "PAYMENT_URL": payment_url,
            "PAYMENT_EVERY": "1",
            "PAYMENT_TIMEOUT": "5",
            "PAYMENT_RETRY": "1",
            "KEEP_KEYS": "3600",
            "KEEP_MARKS": "1209600",
            "PRUNE_MARKS_EVERY": "3600",
            # The audit reads every event.
            "KEEP_DISPATCHED": "86400",
            "PRUNE_EVERY": "60",
            "QUIESCE_LOG_FORMAT": "text",
            "QUIESCE_LOG_LEVEL": "info",
        },
    )


async def create_tables(connection: "asyncpg.Connection[Any]") -> None:
    from quiesce.examples.order_service import schema as orders_schema
    from quiesce.postgres import schema

    await schema.apply(connection)
    await orders_schema.apply(connection)
