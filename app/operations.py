"""GET /health, /ready and /metrics: for whoever runs the server."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from app.errors import unavailable
from app.metrics import render
from app.state import AppState


class Status(msgspec.Struct):
    status: str


async def health(request: Request) -> Response:
    """200 as long as the engine's loop runs, also while it drains; restarting helps when it does not."""
    state: AppState = request.app.state.radish
    if not state.engine.is_alive:
        raise unavailable("The engine is not running.", retry_after_s=1)
    return _status("ok")


async def ready(request: Request) -> Response:
    """200 while new requests are taken."""
    request.app.state.radish.check_ready()
    return _status("ready")


async def metrics(request: Request) -> Response:
    state: AppState = request.app.state.radish
    text, content_type = render(state.engine)
    return Response(text, media_type=content_type)


def _status(status: str) -> Response:
    return Response(msgspec.json.encode(Status(status)), media_type="application/json")
