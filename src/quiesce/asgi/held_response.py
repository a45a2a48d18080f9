"""A response that does not leave before it is decided: committed with the handler's writes, or its key is free."""

import asyncio
import logging
from collections.abc import Callable

from quiesce.errors import IntakeClosed, Unavailable
from quiesce.inbox.kept_response import KeptResponse, ResponseRules
from quiesce.inbox.key_ports import KeyClaim
from quiesce.lifecycle.backoff import Backoff
from quiesce.lifecycle.crash_points import reach
from quiesce.supervisor.critical import critical
from quiesce.supervisor.health import Message, Send

log = logging.getLogger("quiesce.idempotency")

BEFORE_COMMIT = "idempotency.before_commit"
"""The handler is done and nothing is committed: a crash here leaves no trace of the request."""

_SETTLE_AGAIN = Backoff(first=0.1, ceiling=1.0)

COMMITTED = "idempotency.committed"
"""All is committed and the client knows nothing of it: a crash here leaves an answer for its retry."""


class HeldResponse:
    """Stands in the place of `send` for one request.

    A response is collected where it is small enough to be kept and says so: by coming in one piece, or by its
    Content-Length. Any other is a stream. It is not collected; the request is marked as done before the first byte.

    Args:
        keyed: whether there is a key that the response is kept for.
        name: of the request, for what is told.
        on_write_elsewhere: is told the name where the key is held in a transaction that the handler has not used.
        on_decided: is called with the response that is committed, or with None when the key is free. The application
            may go on for long after that, with a stream or with background tasks.
    """

    def __init__(
        self,
        send: Send,
        claim: KeyClaim,
        rules: ResponseRules,
        *,
        keyed: bool,
        name: str,
        on_write_elsewhere: Callable[[str], None],
        on_decided: Callable[[KeptResponse | None], None],
    ) -> None:
        self._send = send
        self._claim = claim
        self._rules = rules
        self._keyed = keyed
        self._name = name
        self._on_write_elsewhere = on_write_elsewhere
        self._on_decided = on_decided
        self._start: Message | None = None
        self._pieces: list[bytes] = []
        self._size = 0
        self._complete = False
        self.decided = asyncio.Event()
        """What this request comes to is committed, or its key is free."""
        self.sent = False
        """Whether a byte of a response has left."""
        self.commit_failed: Exception | None = None

    async def send(self, message: Message) -> None:
        if self.decided.is_set():
            await self._forward(message)
        elif message["type"] == "http.response.start":
            self._start = message
            self._pieces, self._size, self._complete = [], 0, False
        elif message["type"] == "http.response.body":
            await self._body(message.get("body", b""), message.get("more_body", False))
        # Anything else is of an extension that the application was not offered.

    async def end(self) -> None:
        """The application has returned. A response that waited for the end of its block is decided now."""
        if self.decided.is_set():
            return
        if self._complete and not self._claim.open:
            await self._decide()
            await self._release(more=False)
        else:
            # No response, or half of one: the server says so to the client.
            await self.free()

    async def free(self) -> None:
        """Leaves the key to the next attempt, unless the request was decided before."""
        self.decided.set()
        try:
            await critical(f"free the key of {self._name}", self._free)
        except IntakeClosed:
            await self._free()
        finally:
            self._on_decided(None)

    async def _free(self) -> None:
        try:
            await self._claim.free()
        except Exception:
            # The client's answer must not depend on it.
            log.exception("%s: its idempotency key could not be freed, and is when its lease runs out", self._name)

    async def _body(self, piece: bytes, more: bool) -> None:
        if self._start is None:
            raise RuntimeError("the application sent the body of a response before its start")
        self._pieces.append(piece)
        self._size += len(piece)
        if more and self._collects():
            return
        self._complete = not more
        if self._claim.open:
            if more:
                raise RuntimeError("a response cannot be streamed from inside its transaction: leave the block first")
            return
        await self._decide()
        await self._release(more)

    def _collects(self) -> bool:
        assert self._start is not None
        if not self._claim.open and not self._rules.keeps(self._start["status"], self._claim.effect):
            return False
        lengths = [value for name, value in self._start.get("headers", ()) if name.lower() == b"content-length"]
        most = self._rules.max_bytes
        return len(lengths) == 1 and lengths[0].isdigit() and int(lengths[0]) <= most and self._size <= most

    async def _decide(self) -> None:
        assert self._start is not None
        if not self._rules.keeps(self._start["status"], self._claim.effect):
            await self.free()
            return
        if self._keyed and self._claim.renew_every is None and not self._claim.effect:
            self._on_write_elsewhere(self._name)
        response = self._kept() if self._keyed else None
        reach(BEFORE_COMMIT)
        try:
            await critical(f"commit {self._name}", self._settle, response)
        except Exception as error:
            self.commit_failed = error
            await self.free()
            # Into the application: what it does after an answer, such as background tasks, must not be done.
            raise
        self.decided.set()
        self._on_decided(response)
        reach(COMMITTED)

    async def _settle(self, response: KeptResponse | None) -> None:
        """Where what was done is no matter of this commit, it is tried again: a retry would find no answer, and do it
        once more."""
        now = asyncio.get_running_loop().time
        until = now() + self._claim.settles_for
        failures = 0
        while True:
            try:
                return await self._claim.settle(response)
            except Unavailable:
                failures += 1
                wait = _SETTLE_AGAIN.wait(failures)
                if now() + wait >= until:
                    raise
            await asyncio.sleep(wait)

    def _kept(self) -> KeptResponse:
        assert self._start is not None
        status, headers = self._start["status"], self._start.get("headers", ())
        if not self._complete:
            return self._rules.mark(status, headers, "the response was streamed, or longer than what is kept")
        if self._size > self._rules.max_bytes:
            return self._rules.mark(status, headers, f"the response had more than {self._rules.max_bytes} bytes")
        return self._rules.response(status, headers, b"".join(self._pieces))

    async def _release(self, more: bool) -> None:
        """What was held leaves."""
        assert self._start is not None
        pieces, self._pieces = self._pieces, []
        await self._forward(self._start)
        await self._forward({"type": "http.response.body", "body": b"".join(pieces), "more_body": more})

    async def _forward(self, message: Message) -> None:
        self.sent = True
        await self._send(message)
