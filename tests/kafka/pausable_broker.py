"""A broker that tests may pause."""

from collections.abc import Iterator

import pytest

from quiesce.testing.kafka import LocalKafka


@pytest.fixture(scope="session")
def pausable_kafka() -> Iterator[LocalKafka]:
    # A pause must not cost the broker its session with itself as the controller: it would take seconds to
    # come back.
    with LocalKafka(properties={"broker.session.timeout.ms": "60000"}) as broker:
        yield broker


@pytest.fixture
def paused_kafka(pausable_kafka: LocalKafka) -> Iterator[LocalKafka]:
    """A broker for `pause` and `resume`; resumed afterwards.

    Its tests have the marks `needs("kafka")` and `xdist_group("kafka to pause")`: they share one broker.
    """
    yield pausable_kafka
    pausable_kafka.resume()
