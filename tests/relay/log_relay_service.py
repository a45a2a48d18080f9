"""A service that is nothing but a relay over the log, with the crash points that the environment names."""

import os

from quiesce import Budget, Service, service
from quiesce.kafka import KafkaPublisher
from quiesce.postgres import OutboxLog
from quiesce.relay import Relay
from quiesce.testing.crash_points import arm_from_environment

arm_from_environment()


@service(
    "relay", budget=Budget(grace_period=8, prestop=0, http=0, workers=3, producers=2, pools=1, report=0.5, margin=0.5)
)
async def relay(s: Service) -> None:
    store = OutboxLog(os.environ["DATABASE_URL"], claims=4)
    publisher = KafkaPublisher(os.environ["KAFKA_BOOTSTRAP"])
    s.run(Relay(store, publisher, batch=100, max_in_flight=300, max_claims=3))
