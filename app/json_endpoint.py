"""An endpoint that takes one JSON body and gives one back, without generating anything."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.bodies import read_body
from app.disconnect import run_while_connected
from app.state import AppState

Answer = Callable[[AppState, bytes], Awaitable[msgspec.Struct]]


class JsonEndpoint:
    """ASGI endpoint; `answer` turns a body into what is answered, or raises ApiError."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        state: AppState = request.app.state.radish
        try:
            body = await read_body(request, state.config.max_body << 20)
        except ClientDisconnect:
            return
        await run_while_connected(self._respond(state, body, request, send), receive)

    async def _respond(self, state: AppState, body: bytes, request: Request, send: Send) -> None:
        response = json_response(await self._answer(state, body))
        await response(request.scope, request.receive, send)


def json_response(body: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(body), media_type="application/json")
