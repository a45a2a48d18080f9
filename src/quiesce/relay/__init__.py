"""The mover of events: claim, publish, settle. It knows the ports only; the order of its steps is the product."""

from quiesce.relay.progress import Progress
from quiesce.relay.relay import Relay

__all__ = ["Progress", "Relay"]
