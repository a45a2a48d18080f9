"""The asyncio shell that waits: it does what `quiesce.lifecycle.machine` decides."""
