"""Idempotency keys for an application: which requests they guard, and the connection that the handler writes by."""

import functools
import inspect
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from typing import Any, Literal, TypeVar

from quiesce.errors import SettingsError
from quiesce.inbox.kept_response import KEPT_HEADERS, ResponseRules
from quiesce.inbox.key_ports import KeyClaim, KeyStore
from quiesce.inbox.keyed_request import storable_scope

T = TypeVar("T")

ScopeOf = Callable[[Mapping[str, Any]], str | None]

current_claim: ContextVar[KeyClaim | None] = ContextVar("quiesce_key_claim", default=None)


class Idempotency:
    """What the keys of an application mean. Made once, when it starts, so that a wrong setting stops the start.

    Args:
        keys: where they are kept, such as `quiesce.postgres.IdempotencyKeys(db)`.
        scope: tells whose key a request's is, from the ASGI scope: a user or a tenant **as it was authenticated**. Two
            users may send the same key; neither may get the other's answer. "none" says that all requests share one
            set of keys. A plain function, which answers with text of any length; None refuses the request.
        required: whether a guarded request without a key is refused, with 400.
        methods: those that are guarded.
        applies: which of these are; all of them by default.
        bare_keys: whether a key without the quotes of the draft is taken as well.
        wait: seconds for which a request waits for the answer of another one with its key.
        max_request_bytes: of a body with a key; more is refused with 413 before the handler begins.
        max_response_bytes: of a response that is kept; after a longer one a retry is told that it was done.
        kept_headers: headers of a response that come back with a replay.
        kept_4xx: statuses that a handler answers after an effect outside `transaction`.

    Raises:
        SettingsError: one of them is missing or wrong.
    """

    def __init__(
        self,
        keys: KeyStore,
        *,
        scope: ScopeOf | Literal["none"] | None = None,
        required: bool = True,
        methods: Collection[str] = ("POST", "PATCH"),
        applies: Callable[[Mapping[str, Any]], bool] = lambda scope: True,
        bare_keys: bool = True,
        wait: float = 10.0,
        max_request_bytes: int = 1_048_576,
        max_response_bytes: int = 1_048_576,
        kept_headers: Collection[str] = KEPT_HEADERS,
        kept_4xx: Collection[int] = (),
    ) -> None:
        if scope is None or (isinstance(scope, str) and scope != "none"):
            raise SettingsError(
                f"Idempotency: got scope={scope!r}, takes a function of the ASGI scope that says whose key it is, such "
                "as the authenticated user, or 'none' where all callers may share one set of keys"
            )
        if not isinstance(scope, str) and (_is_coroutine_function(scope) or not callable(scope)):
            raise SettingsError(
                f"Idempotency: got scope={getattr(scope, '__qualname__', scope)!r}, takes a plain function, no "
                "coroutine function: have whatever authenticates leave the user in the ASGI scope, as scope['user']"
            )
        if wait < 0 or max_request_bytes < 0:
            raise SettingsError(
                f"Idempotency: got wait={wait:g} and max_request_bytes={max_request_bytes}, takes 0 or more"
            )
        self.keys = keys
        self.required = required
        self.bare_keys = bare_keys
        self.wait = wait
        self.max_request_bytes = max_request_bytes
        self.rules = ResponseRules(tuple(kept_headers), frozenset(kept_4xx), max_response_bytes)
        self._scope_of = scope
        self._methods = frozenset(method.upper() for method in methods)
        self._applies = applies

    def guards(self, scope: Mapping[str, Any]) -> bool:
        """Whether keys mean anything for this request."""
        return scope["type"] == "http" and scope["method"].upper() in self._methods and self._applies(scope)

    def owner_of(self, scope: Mapping[str, Any]) -> str | None:
        """Whose key it is; empty where all share them, None where nobody knows.

        Raises:
            SettingsError: the function's answer is neither text nor None.
        """
        if isinstance(self._scope_of, str):
            return ""
        # What it is annotated with binds nobody.
        owner: object = self._scope_of(scope)
        if owner is None or owner == "":
            return None
        if not isinstance(owner, str):
            if inspect.iscoroutine(owner):
                owner.close()
            raise SettingsError(
                f"Idempotency: the function scope= answered with {type(owner).__name__}, takes text that says whose "
                "key it is, such as str(user_id), or None"
            )
        return storable_scope(owner)

    @property
    def attempt(self) -> int:
        """Which attempt at its request the handler is. More than 1: earlier ones ended without a word, and how far they
        came is unknown, as far as they wrote outside `transaction`."""
        return _claim().attempt

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        """A connection for the handler's writes: `async with idempotency.transaction() as connection:`.

        They are committed together with the key and the response, after the handler has answered and before a byte of
        it is sent. They are rolled back if the block raises, if the answer is a 5xx, and if there is none. Several
        blocks of a request are one transaction. Without a key it is the same, and nothing is kept.

        Raises:
            RuntimeError: no request that is guarded runs here.
            KeyLost: another attempt has the key.
            Unavailable: there is no connection.
        """
        return _claim().transaction()

    def in_transaction(self, handler: Callable[..., Awaitable[T]]) -> Callable[..., Awaitable[T]]:
        """Decorates a handler that takes `connection`: its body is a block of `transaction`.

        The framework does not see that parameter, so it may stand under `@app.post(...)`.
        """
        signature = inspect.signature(handler)
        name = getattr(handler, "__qualname__", repr(handler))
        if not inspect.iscoroutinefunction(handler):
            raise SettingsError(f"in_transaction: {name} is no coroutine function; the connection is for `async def`")
        if "connection" not in signature.parameters:
            raise SettingsError(f"in_transaction: {name} takes no parameter `connection`; give it one")

        @functools.wraps(handler)
        async def with_connection(*args: Any, **kwargs: Any) -> T:
            async with self.transaction() as connection:
                return await handler(*args, connection=connection, **kwargs)

        others = [one for name, one in signature.parameters.items() if name != "connection"]
        vars(with_connection)["__signature__"] = signature.replace(parameters=others)
        return with_connection


def _is_coroutine_function(scope: object) -> bool:
    return inspect.iscoroutinefunction(scope) or inspect.iscoroutinefunction(getattr(scope, "__call__", None))  # noqa: B004


def _claim() -> KeyClaim:
    claim = current_claim.get()
    if claim is None:
        raise RuntimeError(
            "no request with an idempotency key runs here: add IdempotencyMiddleware to the application, and see that "
            "it guards this method and path"
        )
    return claim
