"""The order service with small shares of time, and with the crash points that the environment names."""

import os
from dataclasses import replace

from quiesce import Budget
from quiesce.examples.order_service.main import orders as real
from quiesce.testing.crash_points import arm_from_environment

arm_from_environment()

orders = replace(
    real,
    budget=Budget(grace_period=12, prestop=0, http=3, workers=3, producers=3, pools=1, report=0.5, margin=0.5),
    start_limit=float(os.environ.get("START_LIMIT", "60")),
)
