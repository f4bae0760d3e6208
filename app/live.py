"""GET /live and /live/snapshot: the engine as it is now, for the live page and `radish top`.

Looking costs the engine little: however many look, its picture is taken at most ten times a second, it is
bounded (`engine.snapshot`), and nothing is taken while nobody looks.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.disconnect import run_while_connected
from app.errors import bad_request
from app.live_window import Counters, Percentiles, Rates, Window
from app.sse import EventStream, event
from app.state import AppState
from engine.engine import Engine
from engine.history import StepRecord
from engine.snapshot import NodeView, PageMap, SequenceView
from engine.stats import PageCounts

_FRESH_S = 0.1
_PERIOD_S = 0.5
_SHORTEST_S, _LONGEST_S = 0.1, 2.0


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """The engine at one moment. Moments are seconds on the server's own clock, whose present is `now`."""

    now: float
    model: str
    page_size: int
    max_batch_tokens: int
    running: int
    waiting: int
    counters: Counters
    rates: Rates | None
    ttft: Percentiles | None
    inter_token: Percentiles | None
    pages: PageCounts
    page_map: PageMap
    num_nodes: int
    nodes: list[NodeView]
    sequences: list[SequenceView]


class News(msgspec.Struct, frozen=True, kw_only=True):
    """What happened since the event before, as far as it is remembered, oldest first."""

    steps: list[StepRecord]
    ended: list[SequenceView]


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """One event of the feed."""

    picture: Picture
    news: News


class Live:
    """Pictures of one engine, shared by all who look."""

    def __init__(self, engine: Engine, *, show_text: bool) -> None:
        self.history = engine.history
        self._engine = engine
        self._show_text = show_text
        self._window = Window()
        self._picture: Picture | None = None

    def picture(self) -> Picture:
        """The present picture, or one that is still fresh."""
        now = time.monotonic()
        if self._picture is None or now - self._picture.now >= _FRESH_S:
            self._picture = self._take(now)
        return self._picture

    def _take(self, now: float) -> Picture:
        engine, window = self._engine, self._window
        load, snapshot = engine.load(), engine.snapshot(show_text=self._show_text)
        return Picture(
            now=now,
            model=engine.model_name,
            page_size=engine.config.page_size,
            max_batch_tokens=engine.config.max_batch_tokens,
            running=load.running,
            waiting=load.waiting,
            counters=window.add(engine.stats, now),
            rates=window.rates(),
            ttft=window.ttft(engine.stats),
            inter_token=window.inter_token(engine.stats),
            pages=load.pages,
            page_map=snapshot.page_map,
            num_nodes=load.tree_nodes,
            nodes=snapshot.nodes,
            sequences=snapshot.sequences,
        )


class Reader:
    """One who looks again and again: gets every piece of news once."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._steps_seen = 0
        self._ended_seen = 0

    def frame(self) -> Frame:
        """The picture, and the news since the last call."""
        history = self._live.history
        steps = [step for step in history.steps if step.number > self._steps_seen]
        missed = history.num_ended - self._ended_seen
        ended = list(history.ended)[-missed:] if missed else []
        self._ended_seen = history.num_ended
        if steps:
            self._steps_seen = steps[-1].number
        return Frame(picture=self._live.picture(), news=News(steps=steps, ended=ended))


class LiveFeed:
    """ASGI endpoint: a frame now and then one every `period` seconds (a query parameter), as events.

    Frames that a slow client does not take are left out, not queued. The feed ends when the server begins to.
    """

    def __init__(self, live: Live) -> None:
        self._live = live

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        state: AppState = request.app.state.radish
        period_s = _period_s(request)
        if request.method == "HEAD":
            await Response(media_type="text/event-stream")(scope, receive, send)
            return
        await run_while_connected(self._feed(state, period_s, send), receive)

    async def _feed(self, state: AppState, period_s: float, send: Send) -> None:
        reader = Reader(self._live)
        async with EventStream(send, heartbeat_s=state.config.heartbeat) as events:
            while state.engine.is_alive and not state.draining.is_set():
                await events.write(event(msgspec.json.encode(reader.frame())))
                with suppress(TimeoutError):
                    await asyncio.wait_for(state.draining.wait(), period_s)


class LiveSnapshot:
    """ASGI endpoint: one frame, with all the news that are remembered, as JSON."""

    def __init__(self, live: Live) -> None:
        self._live = live

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        frame = Reader(self._live).frame()
        response = Response(msgspec.json.encode(frame), media_type="application/json")
        await response(scope, receive, send)


def _period_s(request: Request) -> float:
    text = request.query_params.get("period", str(_PERIOD_S))
    try:
        period_s = float(text)
    except ValueError:
        period_s = 0.0
    if not _SHORTEST_S <= period_s <= _LONGEST_S:
        raise bad_request(f"period must be {_SHORTEST_S} to {_LONGEST_S} seconds, not {text!r}.", "period")
    return period_s
