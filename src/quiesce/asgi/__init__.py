"""A service as the guest of somebody else's ASGI server: the uvicorn CLI, gunicorn, hypercorn.

The same service function serves as host and as guest. What a guest cannot promise stands in
`docs/how-to/run-as-a-guest.md`.
"""

from quiesce.asgi.application import application
from quiesce.asgi.lifespan import lifespan
from quiesce.supervisor.request_stop import STOP_KEY, RequestStop, stop_of

__all__ = ["STOP_KEY", "RequestStop", "application", "lifespan", "stop_of"]
