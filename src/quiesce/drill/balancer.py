"""A small TCP balancer that follows readiness, in the process of the drill.

It stands for what is in front of pods: new connections go to ready replicas in turn, a replica that is being
deleted gets none from that instant on, and a connect that fails goes to another replica. What has been sent
to a replica is never sent a second time: whether that is safe only the client knows.
"""

import asyncio
import errno
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from quiesce.drill.probe import Health, probe
from quiesce.drill.splice import Splice, Upstream
from quiesce.errors import StartError

_FAILURES = 3
"""So many probes without an answer in time make a replica not ready: on a busy machine one may be late."""

Tell = Callable[[str], None]


@dataclass(eq=False, slots=True)
class Backend:
    """A replica as the balancer knows it."""

    name: str
    host: str
    port: int
    health: Health = field(default_factory=Health)
    taken_out: bool = False
    """It is being deleted, or dead: it gets no new connection, whatever its readiness says."""
    killed: bool = False
    given_when_dead: int = 0
    """Connections that the kernel still took for it after its SIGKILL."""
    connections: set[Splice] = field(default_factory=set)
    silent_probes: int = 0
    was_ready: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def eligible(self) -> bool:
        return self.health.ready and not self.taken_out

    @property
    def slow(self) -> bool:
        """It was ready and has said nothing since, neither by an answer nor by a closed port."""
        return self.health.silent and self.health.phase != "" and not self.taken_out


class Balancer:
    """Listens on a loopback port of its own.

    Args:
        probe_every: seconds between two readiness probes of a replica.
        connect_timeout: seconds for a replica to take a connection.
        tell: gets a line when a replica that was ready is so no more, and when it is again.
    """

    def __init__(
        self,
        *,
        probe_every: float = 0.3,
        probe_timeout: float = 2.0,
        connect_timeout: float = 5.0,
        tell: Tell = lambda line: None,
    ) -> None:
        self._probe_every = probe_every
        self._probe_timeout = probe_timeout
        self._connect_timeout = connect_timeout
        self._tell = tell
        self._backends: dict[str, Backend] = {}
        self._probing: dict[str, asyncio.Task[None]] = {}
        self._dialling: dict[Splice, asyncio.Task[None]] = {}
        self._open: set[Splice] = set()
        self._server: asyncio.Server | None = None
        self._turn = 0
        self.port = 0
        self.excused: set[str] = set()
        """Ids of requests whose connection was open to a replica at the instant it was killed, or that it
        refused, being dead, before the balancer noticed."""
        self.retried = 0
        """Connects that one replica refused and that were tried on another."""

    async def start(self) -> None:
        """Begins to listen."""
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                lambda: self._accepted(Splice(self._dial, self._ended)), "127.0.0.1", 0, backlog=1024
            )
        except OSError as error:
            raise StartError(f"the balancer cannot listen on 127.0.0.1: {error.strerror}") from error
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Stops listening and probing, and cuts what is open."""
        if self._server is not None:
            self._server.close()
        tasks = [*self._probing.values(), *self._dialling.values()]
        for task in tasks:
            task.cancel()
        for splice in list(self._open):
            splice.close(torn=True)
        if tasks:
            await asyncio.wait(tasks, timeout=1.0)

    def add(self, name: str, host: str, port: int) -> None:
        """From now on it is probed, and gets connections while it is ready."""
        backend = self._backends[name] = Backend(name, host, port)
        self._probing[name] = asyncio.create_task(self._probe(backend), name=f"probe {name}")

    def take_out(self, name: str) -> None:
        """As of now it gets no new connection. The open ones go on, and it is still probed."""
        self._backends[name].taken_out = True

    def note_kill(self, name: str) -> int:
        """The replica gets SIGKILL at this very instant. Returns how many connections are open to it.

        To be called without an await after the signal. Until `forget`, what is still given to the dead
        replica is excused as well: the kernel takes connections for a process until it is gone.
        """
        backend = self._backends[name]
        backend.killed = True
        self.excused.update(splice.request for splice in backend.connections)
        return len(backend.connections)

    def forget(self, name: str) -> None:
        """The replica is gone: it is probed no more."""
        backend = self._backends.pop(name, None)
        if backend is not None:
            backend.taken_out = True
            self._probing.pop(name).cancel()

    def backend(self, name: str) -> Backend | None:
        return self._backends.get(name)

    async def until_ready(self, name: str) -> None:
        """Waits, without a bound of its own, until the replica is ready."""
        backend = self._backends[name]
        while not backend.eligible:
            backend.changed.clear()
            await backend.changed.wait()

    def _accepted(self, splice: Splice) -> Splice:
        self._open.add(splice)
        return splice

    def _dial(self, splice: Splice) -> None:
        self._dialling[splice] = asyncio.create_task(self._find_replica(splice), name="dial")

    def _ended(self, splice: Splice) -> None:
        self._open.discard(splice)
        dialling = self._dialling.pop(splice, None)
        if dialling is not None:
            dialling.cancel()
        for backend in self._backends.values():
            backend.connections.discard(splice)

    async def _find_replica(self, splice: Splice) -> None:
        tried: set[str] = set()
        try:
            while backend := self._next(tried):
                tried.add(backend.name)
                # Counted from before the connect on: it may be taken in the instant of the kill.
                backend.connections.add(splice)
                if dead := backend.killed:
                    self.excused.add(splice.request)
                try:
                    upstream = await self._connect(splice, backend)
                except OSError as error:
                    # No answer in time is one of them.
                    self._refused(splice, backend, error)
                    continue
                if dead:
                    backend.given_when_dead += 1
                elif not backend.killed:
                    # Whatever becomes of it now, no dead replica is the cause.
                    self.excused.discard(splice.request)
                splice.connect(upstream)
                return
            splice.answer("503 Service Unavailable", "no replica took it" if tried else "no replica is ready")
        finally:
            self._dialling.pop(splice, None)

    async def _connect(self, splice: Splice, backend: Backend) -> asyncio.Transport:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(self._connect_timeout):
            upstream, _ = await loop.create_connection(lambda: Upstream(splice), backend.host, backend.port)
        return upstream

    def _next(self, tried: set[str]) -> Backend | None:
        backends = [b for b in self._backends.values() if b.name not in tried]
        # Where nobody is known to be ready, one that is merely slow to say so is better than none.
        eligible = [b for b in backends if b.eligible] or [b for b in backends if b.slow]
        if not eligible:
            return None
        self._turn += 1
        return eligible[self._turn % len(eligible)]

    def _refused(self, splice: Splice, backend: Backend, error: OSError) -> None:
        backend.connections.discard(splice)
        self.retried += 1
        if error.errno == errno.ECONNREFUSED:
            # Nobody listens there any more: no need to wait for the next probe to know it.
            self._heard(backend, Health(refused=True, phase=backend.health.phase, reason="refused a connection"))

    async def _probe(self, backend: Backend) -> None:
        while True:
            health = await probe(backend.host, backend.port, self._probe_timeout)
            backend.silent_probes = backend.silent_probes + 1 if health.silent else 0
            if not health.silent:
                self._heard(backend, health)
            elif backend.silent_probes >= _FAILURES:
                phase = backend.health.phase if backend.health.ready or backend.health.silent else ""
                self._heard(backend, replace(health, phase=phase))
            await asyncio.sleep(self._probe_every)

    def _heard(self, backend: Backend, health: Health) -> None:
        before, backend.health = backend.health, health
        backend.changed.set()
        if before.ready != health.ready and not backend.taken_out:
            if not health.ready:
                backend.was_ready = True
                self._tell(f"{backend.name} is not ready: {health.reason or health.phase}")
            elif backend.was_ready:
                self._tell(f"{backend.name} is ready again")
