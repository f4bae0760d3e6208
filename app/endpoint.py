"""The way of one generating request through the server: read, prepare, answer, all of it while the
client is there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Protocol

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from app.caller import read_deadlines
from app.connection import HANG_UP, WRITE_BODY
from app.disconnect import run_while_connected
from app.errors import ApiError, server_error
from app.generation import Generation
from app.json_endpoint import json_response
from app.replies import Exchange, Reading
from app.request_info import RequestInfo
from app.sse import EventStream
from app.state import AppState
from engine.stream import Update

_log = logging.getLogger("radish.app")

Prepare = Callable[[AppState, bytes], Awaitable[Exchange | Reading]]


class GenerateEndpoint:
    """ASGI endpoint of one API. `prepare` turns a body into a submitted exchange, or raises ApiError."""

    def __init__(self, prepare: Prepare) -> None:
        self._prepare = prepare

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        state: AppState = request.app.state.radish
        state.check_ready()
        read_deadlines(request.headers, state.config)
        try:
            body = await state.read_body(request)
        except ClientDisconnect:
            return
        await run_while_connected(self._answer(state, body, request, send), receive)
        info: RequestInfo = scope["radish"]
        if info.recording is not None:
            await asyncio.wait((info.recording,))

    async def _answer(self, state: AppState, body: bytes, request: Request, send: Send) -> None:
        exchange = await self._prepare(state, body)
        info: RequestInfo = request.scope["radish"]
        info.generation = exchange.generation
        if isinstance(exchange, Reading):
            await self._read(exchange, request, send)
        elif exchange.stream and exchange.options.resumable:
            stream = state.streams.open(exchange.generation, lambda sink: tell(exchange, sink))
            info.recording = stream.task
            await state.streams.send(stream, 0, send, heartbeat_s=state.config.heartbeat)
        else:
            await self._respond(state, exchange, request, send)

    async def _read(self, reading: Reading, request: Request, send: Send) -> None:
        with reading.generation:
            await whole_updates(reading.generation)
            await json_response(await reading.answer())(request.scope, request.receive, send)

    async def _respond(self, state: AppState, exchange: Exchange, request: Request, send: Send) -> None:
        generation = exchange.generation
        with generation:
            if exchange.stream:
                write_body = request.scope.get(WRITE_BODY)
                heartbeat_s = state.config.heartbeat
                async with EventStream(send, heartbeat_s=heartbeat_s, write_body=write_body) as events:
                    request.scope["radish"].events = events
                    at_once = events.write_at_once if write_body else None
                    if not await tell(exchange, events, at_once):
                        request.scope[HANG_UP]()
                return
            updates = await whole_updates(generation)
            if exchange.prepare is not None:
                await exchange.prepare(updates)
            # Of a long answer nothing is kept but its JSON while it is sent.
            response = json_response(exchange.reply.whole(updates, generation.usage()))
            updates.clear()
            await response(request.scope, request.receive, send)


async def whole_updates(generation: Generation) -> list[Update]:
    """Everything of each choice, once it is complete, in the order of their indices."""
    merged: dict[int, Update] = {}
    async with aclosing(generation.updates()) as stream:
        async for updates in stream:
            for update in updates:
                if update.index in merged:
                    merged[update.index].merge(update)
                else:
                    merged[update.index] = update
    return [merged[index] for index in range(generation.num_choices)]


class Sink(Protocol):
    """Takes the events of a stream."""

    async def write(self, *events: bytes) -> None: ...


async def tell(exchange: Exchange, sink: Sink, write_at_once: Callable[..., bool] | None = None) -> bool:
    """Tell the whole answer as events; a failure by one event at the end, and by False.

    Args:
        write_at_once: as the sink's `write`, without waiting; False once it has to be waited for.
    """
    wire, is_whole = exchange.wire, False
    try:
        await _tell_chunks(exchange, sink, write_at_once)
        is_whole = True
    except ApiError as error:
        await sink.write(*wire.failure(error))
    except Exception:  # noqa: BLE001  it is logged, and the client has to be told
        _log.exception("a stream failed")
        await sink.write(*wire.failure(server_error("Internal error.")))
    if wire.done:
        await sink.write(wire.done)
    return is_whole


async def _tell_chunks(exchange: Exchange, sink: Sink, write_at_once: Callable[..., bool] | None) -> None:
    generation, reply, frame = exchange.generation, exchange.reply, exchange.wire.frame
    opening = [*map(frame, reply.opening(exchange.chunk_usage()))]
    if opening:
        await sink.write(*opening)

    def news_of(updates: list[Update]) -> list[bytes]:
        """All choices' news of one step, for one write."""
        usage = exchange.chunk_usage()
        return [frame(chunk) for update in updates for chunk in reply.chunks(update, usage)]

    async with aclosing(generation.updates()) as stream:
        async for updates in stream:
            if exchange.prepare is not None:
                await exchange.prepare(updates)
            if news := news_of(updates):
                await sink.write(*news)
            if write_at_once is not None and exchange.prepare is None:
                await generation.pass_on(lambda updates: write_at_once(*news_of(updates)))
    if exchange.options.include_usage or exchange.timings:
        usage = generation.usage() if exchange.options.include_usage else exchange.chunk_usage()
        closing = [*map(frame, reply.closing(usage))]
        if closing:
            await sink.write(*closing)
