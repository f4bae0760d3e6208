"""The application, and the process that serves it until it is told to stop."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, cast

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from app.anthropic_api import count_tokens, create_message
from app.anthropic_wire import error_body
from app.chat import create_chat_completion
from app.completions import create_completion
from app.connection import Connection, connection_class
from app.embeddings import create_embeddings
from app.endpoint import GenerateEndpoint
from app.errors import ApiError
from app.gate import KeyGate
from app.json_endpoint import JsonEndpoint
from app.keys import configured_keys
from app.live import Live, LiveFeed, LiveSnapshot
from app.middleware import RequestContext
from app.models_api import get_model, list_models
from app.openapi_page import openapi_json, openapi_page
from app.operations import health, metrics, ready
from app.page import page_routes
from app.requests_api import get_request
from app.responses import ResponseEndpoint, ResponsesEndpoint, cancel_response, delete_response
from app.schema_check import check_schema
from app.score import create_score
from app.state import AppState
from app.stream_store import StreamStore
from app.streams_api import StreamEndpoint, delete_stream
from app.tokens_api import detokenize, show_version, tokenize, tokenizer_info
from app.unread import MOST_UNREAD, bound_unread
from engine.config import Config
from engine.engine import Engine

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

_BACKLOG = 2048
_UNSENT = 128 * 1024
"""Bytes the kernel takes for a connection beyond what is on its way. By itself it takes megabytes: a client
that does not read would not be noticed for long, and many of them would hold much memory."""
_FLUSH_S = 5
"""After draining: how long finished answers may take to reach slow clients."""
_TICKS = 10
"""Of uvicorn, a tenth of a second each, from one look at what is unread to the next."""


def create_app(engine: Engine, config: Config, tracing: TracerProvider | None = None) -> Starlette:
    """The HTTP application of an engine, which it starts and stops with its lifespan.

    Args:
        tracing: takes a trace of every generating request; needs the extra `traces`.

    Raises:
        ConfigError: the configured API keys cannot be read.
    """

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        await engine.start()
        try:
            yield
        finally:
            await engine.stop()
            app.state.radish.close()

    app = Starlette(
        routes=[*_api_routes(), *_looking_routes(engine, config)],
        middleware=[
            *_cors_middleware(config),
            Middleware(RequestContext, tokenizer=engine.tokenizer if config.log_prompts else None),
            *_key_gate(config),
            *_tracing_middleware(tracing),
        ],
        exception_handlers={ApiError: _api_error, HTTPException: _http_error},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    app.state.radish = AppState(engine, config)
    return app


def _api_routes() -> list[BaseRoute]:
    """For programs: the API, and what tells how the server does."""
    return [
        Route("/v1/chat/completions", GenerateEndpoint(create_chat_completion), methods=["POST"]),
        Route("/v1/completions", GenerateEndpoint(create_completion), methods=["POST"]),
        Route("/v1/embeddings", GenerateEndpoint(create_embeddings), methods=["POST"]),
        Route("/v1/score", GenerateEndpoint(create_score), methods=["POST"]),
        Route("/v1/responses", ResponsesEndpoint(), methods=["POST"]),
        Route("/v1/responses/{id}", ResponseEndpoint(), methods=["GET"]),
        Route("/v1/responses/{id}", delete_response, methods=["DELETE"]),
        Route("/v1/responses/{id}/cancel", cancel_response, methods=["POST"]),
        Route("/v1/messages", GenerateEndpoint(create_message), methods=["POST"]),
        Route("/v1/messages/count_tokens", JsonEndpoint(count_tokens), methods=["POST"]),
        Route("/v1/models", list_models),
        Route("/v1/models/{model:path}", get_model),
        Route("/v1/schema/check", JsonEndpoint(check_schema), methods=["POST"]),
        Route("/v1/requests/{id}", get_request),
        Route("/v1/streams/{id}", StreamEndpoint(), methods=["GET"]),
        Route("/v1/streams/{id}", delete_stream, methods=["DELETE"]),
        Route("/tokenize", JsonEndpoint(tokenize), methods=["POST"]),
        Route("/detokenize", JsonEndpoint(detokenize), methods=["POST"]),
        Route("/tokenizer_info", tokenizer_info),
        Route("/version", show_version),
        Route("/openapi.json", openapi_json),
        Route("/docs", openapi_page),
        Route("/health", health),
        Route("/ready", ready),
        Route("/metrics", metrics),
    ]


def _key_gate(config: Config) -> list[Middleware]:
    keys = configured_keys(config)
    if keys is None:
        return []
    return [
        Middleware(KeyGate, keys=keys, open_metrics=config.open_metrics, share_prefixes=config.share_prefixes)
    ]


def _cors_middleware(config: Config) -> list[Middleware]:
    if config.cors_origins is None:
        return []
    return [
        Middleware(
            CORSMiddleware,
            allow_origins=config.cors_origins,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=[
                "x-request-id",
                "content-location",
                "openai-processing-ms",
                "retry-after",
                "retry-after-ms",
            ],
        )
    ]


def _tracing_middleware(provider: TracerProvider | None) -> list[Middleware]:
    if provider is None:
        return []
    from app.tracing import Tracing  # noqa: PLC0415  # an optional extra

    return [Middleware(Tracing, provider=provider)]


def _looking_routes(engine: Engine, config: Config) -> list[BaseRoute]:
    """For people: the page, and what it draws."""
    live = Live(engine, show_text=config.show_prompts)
    return [
        Route("/live", LiveFeed(live), methods=["GET"]),
        Route("/live/snapshot", LiveSnapshot(live), methods=["GET"]),
        *page_routes(),
    ]


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    if request.url.path.startswith("/v1/messages"):
        body = msgspec.json.encode(error_body(error))
        return Response(body, error.status, error.headers, media_type="application/json")
    return error.response()


async def _http_error(request: Request, error: Exception) -> Response:
    """What the router refuses: an unknown path, a wrong method."""
    assert isinstance(error, HTTPException)
    what = {404: "Unknown URL", 405: "Method not allowed"}.get(error.status_code, error.detail)
    return ApiError(
        error.status_code, f"{what}: {request.method} {request.url.path}", headers=error.headers
    ).response()


async def serve(app: Starlette, config: Config, on_ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT.

    Then the server is no longer ready and answers new requests with 503, running ones get
    `config.drain_timeout` seconds to finish, and what is left is ended. A second signal ends it at once.

    Args:
        on_ready: called with the server's URL once requests are answered.

    Raises:
        OSError: the address cannot be listened on.
    """

    with listen(config) as listener:
        server = HTTPServer(app, config, on_started=lambda: on_ready(url_of(listener)))
        serving = asyncio.create_task(server.serve([listener]))
        with _stop_signals() as stop:
            draining = asyncio.create_task(_drain_when_told(stop, app, config, server))
            try:
                await serving
            finally:
                draining.cancel()
                await asyncio.wait((draining,))


def listen(config: Config) -> socket.socket:
    """A socket that listens on the configured address.

    Raises:
        OSError: the address is in use, or none of this machine's.
    """
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    # asyncio switches Nagle's algorithm off only where the protocol is given, and every event would wait
    # for the acknowledgement of the one before.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT)  # connections inherit it
        listener.bind((config.host, config.port))
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class HTTPServer(uvicorn.Server):
    """uvicorn, set up for this application; leaves the signals to `serve`, and tells when it listens."""

    def __init__(self, app: Starlette, config: Config, *, on_started: Callable[[], None]) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                loop="none",
                http=connection_class(config),
                ws="none",
                lifespan="on",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                backlog=_BACKLOG,
                timeout_keep_alive=max(1, round(config.keep_alive)),
                timeout_graceful_shutdown=_FLUSH_S,
            )
        )
        self._on_started = on_started
        self._streams: StreamStore = app.state.radish.streams

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_started()

    @property
    def connections(self) -> set[Connection]:
        """All that are open."""
        return cast("set[Connection]", self.server_state.connections)

    async def on_tick(self, counter: int) -> bool:
        if counter % _TICKS == 0:
            bound_unread(self.connections, self._streams, MOST_UNREAD)
        return await super().on_tick(counter)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _drain_when_told(
    stop: asyncio.Queue[None], app: Starlette, config: Config, server: uvicorn.Server
) -> None:
    await stop.get()
    state: AppState = app.state.radish
    state.draining.set()
    drained = asyncio.create_task(state.engine.drain(config.drain_timeout))
    again = asyncio.create_task(stop.get())
    try:
        await asyncio.wait((drained, again), return_when=asyncio.FIRST_COMPLETED)
    finally:
        drained.cancel()
        again.cancel()
    # What still runs ends now, and says so to its client, before the connections are closed.
    await state.engine.stop()
    server.should_exit = True


@contextmanager
def _stop_signals() -> Iterator[asyncio.Queue[None]]:
    """A queue that gets an item for every SIGTERM and SIGINT."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[None] = asyncio.Queue()
    signals = (signal.SIGTERM, signal.SIGINT)
    for number in signals:
        loop.add_signal_handler(number, queue.put_nowait, None)
    try:
        yield queue
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
