"""An order service: HTTP, PostgreSQL, an outbox relay, a Kafka consumer, a cleaner. `quiesce demo` runs it."""
