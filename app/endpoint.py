"""The way of one generating request through the server: read, prepare, answer, all of it while the
client is there."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import aclosing

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.bodies import read_body
from app.disconnect import run_while_connected
from app.errors import ApiError, server_error
from app.replies import Exchange
from app.request_info import RequestInfo
from app.sse import DONE, EventStream, event
from app.state import AppState
from engine.stream import Update

_log = logging.getLogger("radish.app")

Prepare = Callable[[AppState, bytes], Awaitable[Exchange]]


class GenerateEndpoint:
    """ASGI endpoint of one API. `prepare` turns a body into a submitted exchange, or raises ApiError."""

    def __init__(self, prepare: Prepare) -> None:
        self._prepare = prepare

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        state: AppState = request.app.state.radish
        state.check_ready()
        try:
            body = await read_body(request, state.config.max_body << 20)
        except ClientDisconnect:
            return
        await run_while_connected(self._answer(state, body, request, send), receive)

    async def _answer(self, state: AppState, body: bytes, request: Request, send: Send) -> None:
        exchange = await self._prepare(state, body)
        info: RequestInfo = request.scope["radish"]
        info.generation = exchange.generation
        with exchange.generation:
            if exchange.stream:
                await _send_stream(exchange, send, state.config.heartbeat)
            else:
                response = Response(await _whole(exchange), media_type="application/json")
                await response(request.scope, request.receive, send)


async def _whole(exchange: Exchange) -> bytes:
    """The answer as one JSON document, once it is complete."""
    generation = exchange.generation
    merged: dict[int, Update] = {}
    async with aclosing(generation.updates()) as stream:
        async for updates in stream:
            for update in updates:
                if update.index in merged:
                    merged[update.index].merge(update)
                else:
                    merged[update.index] = update
    in_order = [merged[index] for index in range(generation.num_choices)]
    return msgspec.json.encode(exchange.reply.whole(in_order, generation.usage()))


async def _send_stream(exchange: Exchange, send: Send, heartbeat_s: float) -> None:
    """The answer as events, ending with `[DONE]`; a failure is told by one event before that."""
    async with EventStream(send, heartbeat_s=heartbeat_s) as events:
        try:
            await _send_chunks(exchange, events)
        except ApiError as error:
            await events.write(event(error.encode()))
        except Exception:  # noqa: BLE001  it is logged, and the client has to be told
            _log.exception("a stream failed")
            await events.write(event(server_error("Internal error.").encode()))
        await events.write(DONE)


async def _send_chunks(exchange: Exchange, events: EventStream) -> None:
    generation, reply = exchange.generation, exchange.reply
    opening = _events(reply.opening(exchange.chunk_usage()))
    if opening:
        await events.write(opening)
    async with aclosing(generation.updates()) as stream:
        async for updates in stream:
            usage = exchange.chunk_usage()
            # All choices' news of one step in one write.
            written = b"".join(_events(reply.chunks(update, usage)) for update in updates)
            if written:
                await events.write(written)
    if exchange.options.include_usage:
        await events.write(_events([reply.closing(generation.usage())]))


def _events(chunks: Iterable[msgspec.Struct]) -> bytes:
    return b"".join(event(msgspec.json.encode(chunk)) for chunk in chunks)
