"""What stands between a server and an application: a service as a guest, and idempotency keys.

A guest is hosted by somebody else's server: the uvicorn CLI, gunicorn, hypercorn. The same service function serves as
host and as guest. What a guest cannot promise stands in `docs/how-to/run-as-a-guest.md`; keys are the matter of
`docs/how-to/idempotent-endpoints.md`.
"""

from quiesce.asgi.application import application
from quiesce.asgi.idempotency import Idempotency
from quiesce.asgi.idempotency_middleware import IdempotencyMiddleware
from quiesce.asgi.lifespan import lifespan
from quiesce.supervisor.request_stop import STOP_KEY, RequestStop, stop_of

__all__ = [
    "STOP_KEY",
    "Idempotency",
    "IdempotencyMiddleware",
    "RequestStop",
    "application",
    "lifespan",
    "stop_of",
]
