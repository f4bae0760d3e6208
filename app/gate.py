"""In front of all routes: nothing answers without a key, once there are keys."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from app.caller import Caller, current_caller
from app.errors import ApiError
from app.keys import Key, KeyRing
from app.request_info import RequestInfo

_OPEN = frozenset({"/health", "/ready", "/"})
_OPEN_FOLDER = "/static/"
"""The page's files; what it shows it has to ask for with a key."""


class KeyGate:
    """ASGI middleware that lets open paths and requests with a valid key through.

    The path it looks at is the one that routes are matched by, character for character, so there is no
    spelling that is open here and something else there.

    Args:
        open_metrics: whether /metrics answers without a key.
        share_prefixes: whether keys share cached prefixes with one another.
    """

    def __init__(self, app: ASGIApp, *, keys: KeyRing, open_metrics: bool, share_prefixes: bool) -> None:
        self._app = app
        self._keys = keys
        self._open = _OPEN | ({"/metrics"} if open_metrics else set())
        self._share_prefixes = share_prefixes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or self._is_open(scope["path"]):
            await self._app(scope, receive, send)
            return
        key = self._key(Headers(scope=scope))
        if key is None:
            await _unauthorized().response()(scope, receive, send)
            return
        namespace = "" if self._share_prefixes else key.id
        current_caller.set(Caller(namespace=namespace, tenant=key.id, most_urgent=key.limits.priority))
        if scope["method"] == "POST" and not _cancels(scope["path"]):
            await self._within_limits(key, scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _is_open(self, path: str) -> bool:
        return path in self._open or path.startswith(_OPEN_FOLDER)

    def _key(self, headers: Headers) -> Key | None:
        """The key of a request that names exactly one."""
        given = [value.encode("latin-1") for value in headers.getlist("x-api-key")]
        for value in headers.getlist("authorization"):
            scheme, _, text = value.partition(" ")
            given.append(text.strip().encode("latin-1") if scheme.lower() == "bearer" else b"")
        return self._keys.find(given[0]) if len(given) == 1 else None

    async def _within_limits(self, key: Key, scope: Scope, receive: Receive, send: Send) -> None:
        account = self._keys.account(key)
        try:
            account.begin(key.limits)
        except ApiError as error:
            scope["app"].state.radish.engine.stats.rejected[error.detail.code or "key"] += 1
            await error.response()(scope, receive, send)
            return
        try:
            await self._app(scope, receive, send)
        finally:
            info: RequestInfo = scope["radish"]
            account.end(key.limits, info.generation.usage().total_tokens if info.generation else 0)


def _cancels(path: str) -> bool:
    """Whether it ends what counts against a limit, which must not refuse that."""
    return path.startswith("/v1/responses/") and path.endswith("/cancel")


def _unauthorized() -> ApiError:
    return ApiError(
        401,
        "A valid API key is needed, sent as: Authorization: Bearer KEY.",
        code="invalid_api_key",
        headers={"WWW-Authenticate": "Bearer"},
    )
