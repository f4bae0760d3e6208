"""An endpoint that takes one JSON body and gives one back, without generating anything."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.disconnect import run_while_connected
from app.request_info import RequestInfo
from app.state import AppState

_PIECE = 1 << 18
"""Bytes."""

Answer = Callable[[AppState, bytes], Awaitable[msgspec.Struct]]


class JsonEndpoint:
    """ASGI endpoint; `answer` turns a body into what is answered, or raises ApiError."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        state: AppState = request.app.state.radish
        try:
            body = await state.read_body(request)
        except ClientDisconnect:
            return
        await run_while_connected(self._respond(state, body, request, send), receive)

    async def _respond(self, state: AppState, body: bytes, request: Request, send: Send) -> None:
        response = json_response(await self._answer(state, body))
        await response(request.scope, request.receive, send)


class _PieceByPiece(Response):
    """A large one is sent as the client takes it, instead of being copied into a buffer at once."""

    media_type = "application/json"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        body = memoryview(self.body)
        info: RequestInfo = scope["radish"]
        info.unsent = len(body)
        for at in range(0, len(body), _PIECE):
            more = at + _PIECE < len(body)
            await send(
                {"type": "http.response.body", "body": bytes(body[at : at + _PIECE]), "more_body": more}
            )


def json_response(body: msgspec.Struct) -> Response:
    return _PieceByPiece(msgspec.json.encode(body))
