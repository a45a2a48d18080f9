"""What the order service takes from its environment."""

from dataclasses import dataclass

_MORE_THAN_0 = (
    *("expire_after", "expire_every", "keep_dispatched", "prune_every", "keep_keys", "keep_marks", "prune_marks_every"),
    *("payment_every", "payment_timeout", "payment_retry"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Each field is read from the variable of its name in capitals: DATABASE_URL, PORT, ..."""

    database_url: str
    kafka_bootstrap: str
    outbox_dsn: str = ""
    """Where the relay connects; DATABASE_URL by default. It never uses the application's pool."""
    outbox_store: str = "log"
    """`log`, or `row` for the way of locked and marked rows. A table stays with the one that began."""
    host: str = "0.0.0.0"  # noqa: S104 - a pod is reached from outside
    port: int = 8080
    order_topic: str = "order-events"
    product_topic: str = "product-events"
    consumer_group: str = "orders"
    session_timeout_ms: int = 45_000
    """When a consumer that was killed loses its partitions."""
    heartbeat_interval_ms: int = 3_000
    expire_after: float = 900.0
    """Seconds an order may stay unpaid."""
    expire_every: float = 60.0
    keep_dispatched: float = 7 * 86_400.0
    """Seconds a dispatched event stays in the table."""
    prune_every: float = 60.0
    keep_marks: float = 14 * 86_400.0
    """Seconds the inbox knows a product event: longer than the topics keep it."""
    prune_marks_every: float = 3_600.0
    keep_keys: float = 86_400.0
    """Seconds an Idempotency-Key is known, with its answer."""
    payment_url: str = ""
    """Where orders are charged, by POST with an Idempotency-Key; empty: nowhere, and they only expire."""
    payment_every: float = 1.0
    payment_timeout: float = 5.0
    """Seconds for one attempt at a payment."""
    payment_retry: float = 10.0
    """Seconds until a payment whose outcome is not known is tried again, doubled with each attempt."""
    pool_size: int = 10

    def __post_init__(self) -> None:
        for name in ("database_url", "outbox_dsn"):
            url = getattr(self, name)
            if not url.startswith(("postgresql://", "postgres://")) and (url or name == "database_url"):
                # Not shown: where the form is wrong, nobody knows which part is the password.
                raise ValueError(f"{name.upper()}: got a value that is no URL, takes postgresql://user@host/database")
        if not self.kafka_bootstrap:
            raise ValueError("KAFKA_BOOTSTRAP: got '', takes addresses of brokers, such as kafka:9092")
        if self.outbox_store not in ("log", "row"):
            raise ValueError(f"OUTBOX_STORE: got {self.outbox_store!r}, takes log or row")
        if not 0 < self.port < 65_536:
            raise ValueError(f"PORT: got {self.port}, takes a port from 1 to 65535")
        if self.payment_url and not self.payment_url.startswith(("http://", "https://")):
            raise ValueError("PAYMENT_URL: got a value that is no URL, takes http://host/path, or nothing")
        for name in _MORE_THAN_0:
            if (value := getattr(self, name)) <= 0:
                raise ValueError(f"{name.upper()}: got {value:g}, takes seconds, more than 0")

    @property
    def relay_dsn(self) -> str:
        return self.outbox_dsn or self.database_url

    @property
    def consumer(self) -> dict[str, str | int]:
        """Settings of the Kafka consumer."""
        return {
            "bootstrap.servers": self.kafka_bootstrap,
            "session.timeout.ms": self.session_timeout_ms,
            "heartbeat.interval.ms": self.heartbeat_interval_ms,
        }
