"""GET /v1/streams/{id}, which goes on with a stream where its connection broke off, and DELETE."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from app.disconnect import run_while_connected
from app.errors import bad_request
from app.state import AppState


class StreamEndpoint:
    """ASGI endpoint of GET: what follows the event that the header Last-Event-ID names, as it comes.

    204 where nothing follows, which tells a browser's EventSource not to come again.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        state: AppState = request.app.state.radish
        stream = state.streams.get(request.path_params["id"])
        after = _last_event(request)
        if request.method == "HEAD" or stream.recording.is_over(after):
            await Response(status_code=204)(scope, receive, send)
            return
        work = state.streams.send(stream, after, send, heartbeat_s=state.config.heartbeat)
        await run_while_connected(work, receive)


async def delete_stream(request: Request) -> Response:
    """End a stream that nobody wants any more."""
    state: AppState = request.app.state.radish
    stream = state.streams.get(request.path_params["id"])
    state.streams.forget(stream)
    return JSONResponse({"id": stream.id, "object": "stream", "deleted": True})


def _last_event(request: Request) -> int:
    text = request.headers.get("last-event-id", "0")
    if not (text.isascii() and text.isdecimal() and len(text) < 16):
        raise bad_request(f"The header Last-Event-ID must be an event's id, not {text!r}.", "Last-Event-ID")
    return int(text)
