"""The middleware that gives a request with an `Idempotency-Key` one effect, however often it is sent.

Follows draft-ietf-httpapi-idempotency-key-header-07. It knows no framework.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from quiesce.asgi.held_response import HeldResponse
from quiesce.asgi.idempotency import Idempotency, current_claim
from quiesce.asgi.key_answers import answer_problem, replay
from quiesce.asgi.request_body import NoBody, fingerprint_of, read_body, receive_again, unheard_leaving
from quiesce.asgi.waiting_keys import WaitingKeys
from quiesce.errors import KeyLost, KeyRefused, Unavailable
from quiesce.inbox import key_problems
from quiesce.inbox.idempotency_key import HEADER, parse_key
from quiesce.inbox.kept_response import KeptResponse
from quiesce.inbox.key_ports import KeyClaim, NoClaim
from quiesce.inbox.keyed_request import KeyedRequest
from quiesce.lifecycle.crash_points import reach
from quiesce.supervisor.health import AsgiApp, Receive, Scope, Send

log = logging.getLogger("quiesce.idempotency")

CLAIMED = "idempotency.claimed"
"""The key is claimed and the handler has not begun: a crash here leaves nothing done."""

_RETRY_AFTER = 1
_PLAIN = "/!$&'()*+,;=:@"
"""What stands in a path without being escaped (RFC 3986, 3.3)."""


class IdempotencyMiddleware:
    """`app.add_middleware(IdempotencyMiddleware, idempotency=idempotency)`, or around any ASGI application.

    It stands inside of whatever authenticates, and outside of what the handlers need. Put compression outside, too.
    """

    def __init__(self, app: AsgiApp, idempotency: Idempotency) -> None:
        self._app = app
        self._idempotency = idempotency
        self._waiting = WaitingKeys(idempotency.keys, idempotency.wait)
        self._warned = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._idempotency.guards(scope):
            await self._app(scope, receive, send)
            return
        values = [bytes(value) for name, value in scope["headers"] if name.lower() == HEADER]
        if values:
            await self._keyed(values, scope, receive, send)
        elif self._idempotency.required:
            await answer_problem(send, key_problems.key_missing())
        else:
            claim = await self._idempotency.keys.claim(None, self._idempotency.wait)
            assert not isinstance(claim, (KeptResponse, NoClaim))
            await self._carry_out(claim, None, scope, receive, send)

    async def _keyed(self, values: list[bytes], scope: Scope, receive: Receive, send: Send) -> None:
        settings = self._idempotency
        try:
            key = parse_key(values, bare=settings.bare_keys)
        except KeyRefused as error:
            await answer_problem(send, key_problems.key_malformed(str(error)))
            return
        owner = settings.owner_of(scope)
        if owner is None:
            await answer_problem(send, key_problems.scope_unknown())
            return
        fingerprint = fingerprint_of(scope)
        body = await read_body(scope, receive, settings.max_request_bytes, fingerprint)
        if body is NoBody.TOO_LARGE:
            await answer_problem(send, key_problems.body_too_large(settings.max_request_bytes))
        elif not isinstance(body, NoBody):
            request = KeyedRequest(owner, key, fingerprint.digest())
            await self._claimed(request, scope, receive_again(body, receive), send)

    async def _claimed(self, request: KeyedRequest, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            found = await self._waiting.claim(request)
        except Unavailable as error:
            log.warning("%s: %s", _name(scope), error)
            await answer_problem(send, key_problems.store_unavailable())
            return
        if found is NoClaim.OTHER_REQUEST:
            await answer_problem(send, key_problems.key_reused())
        elif found is NoClaim.OUTSTANDING:
            await answer_problem(send, key_problems.outstanding(_RETRY_AFTER))
        elif isinstance(found, KeptResponse):
            await replay(send, found)
        else:
            assert not isinstance(found, NoClaim)
            await self._carry_out(found, request, scope, receive, send)

    async def _carry_out(
        self, claim: KeyClaim, request: KeyedRequest | None, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Runs the application. Each way out, an exception and a cancel among them, settles the claim or frees it."""
        response = HeldResponse(
            send,
            claim,
            self._idempotency.rules,
            keyed=request is not None,
            name=_name(scope),
            on_write_elsewhere=self._warn_once,
            on_decided=lambda answer: None if request is None else self._waiting.done(request, answer),
        )
        renewing = asyncio.create_task(_renew(claim, claim.renew_every, _name(scope))) if claim.renew_every else None
        if request is not None:
            receive = unheard_leaving(receive, response.decided)
        before = current_claim.set(claim)
        extensions = scope.get("extensions")
        # In place, since those around us look for what the framework writes into it.
        scope["extensions"] = _without_other_ways(extensions or {})
        try:
            if request is not None:
                reach(CLAIMED)
            await self._app(scope, receive, response.send)
            await response.end()
        except KeyLost as error:
            await response.free()
            if response.sent:
                raise
            log.warning("%s: %s", _name(scope), error)
            await answer_problem(send, key_problems.outstanding(_RETRY_AFTER))
        except BaseException:
            await response.free()
            if response.commit_failed is not None and not response.sent:
                passing = isinstance(response.commit_failed, Unavailable)
                await answer_problem(send, key_problems.not_committed(passing, undone=claim.effect))
            # Any other error is for those around us to answer. All of them are for those who log.
            raise
        finally:
            if renewing is not None:
                renewing.cancel()
            if extensions is None:
                scope.pop("extensions", None)
            else:
                scope["extensions"] = extensions
            current_claim.reset(before)

    def _warn_once(self, name: str) -> None:
        if not self._warned:
            self._warned = True
            log.warning(
                "%s was answered without idempotency.transaction(), and its key is held in that transaction: what it "
                'wrote elsewhere is not committed with its key; use it, or hold="lease"',
                name,
            )


async def _renew(claim: KeyClaim, every: float, name: str) -> None:
    """Keeps others away from the key until cancelled."""
    while True:
        await asyncio.sleep(every)
        try:
            if not await claim.renew():
                log.error("%s: its lease ran out, and another attempt took its idempotency key", name)
                return
        except Unavailable as error:
            log.warning("%s: the lease of its idempotency key could not be renewed: %s", name, error)
        except Exception:
            # Nobody waits for this task: what it raised would be told by nobody, and the lease would run out.
            log.exception("%s: the lease of its idempotency key could not be renewed, and is tried again", name)


def _without_other_ways(extensions: Mapping[str, Any]) -> dict[str, Any]:
    """Those by which a response could leave on another way than by its start and its body are not offered."""
    return {name: value for name, value in extensions.items() if not name.startswith("http.response.")}


def _name(scope: Mapping[str, Any]) -> str:
    """As it was sent, or nearly: a decoded path may hold a line feed, and forge a line of the log."""
    return f"{scope['method']} {quote(scope['path'], safe=_PLAIN)}"
