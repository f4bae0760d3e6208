"""Server-sent events: framing and heartbeats (WHATWG HTML, section 9.2)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self

from starlette.types import Send

DONE = b"data: [DONE]\n\n"
_HEARTBEAT = b": keep-alive\n\n"
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


def event(data: bytes) -> bytes:
    """One event; `data` has no line breaks, as JSON has none."""
    return b"data: " + data + b"\n\n"


def named_event(name: str, data: bytes) -> bytes:
    return b"event: " + name.encode() + b"\n" + event(data)


class EventStream:
    """One response of events. Entering it sends the headers, leaving it ends the response.

    Left with an exception, the response is not completed: the client sees that it broke off. A slow
    client holds up only the task that writes to it.

    Args:
        heartbeat_s: silence after which a comment is sent, so that nobody on the way gives up.
        location: where the same stream can be had again.
        write_body: writes a piece of the body without waiting, and tells whether the client keeps up.
    """

    def __init__(
        self,
        send: Send,
        *,
        heartbeat_s: float,
        location: str | None = None,
        write_body: Callable[[bytes], bool] | None = None,
    ) -> None:
        self._headers = [*_HEADERS, (b"content-location", location.encode())] if location else _HEADERS
        self._send = send
        self._write_body = write_body
        self._heartbeat_s = heartbeat_s
        self._loop = asyncio.get_running_loop()
        self._last_write = self._loop.time()
        self.unsent = 0
        """Bytes of events that wait for the client to take what was sent before."""

    async def __aenter__(self) -> Self:
        await self._send({"type": "http.response.start", "status": 200, "headers": self._headers})
        self._heart = asyncio.create_task(self._beat())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._heart.cancel()
        await asyncio.wait((self._heart,))
        if error is None:
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    def write_at_once(self, *events: bytes) -> bool:
        """Send complete events, if any, without waiting; returns whether the client keeps up with them.

        Only where there is a `write_body`.
        """
        assert self._write_body is not None
        if not events:
            return True
        self._last_write = self._loop.time()
        return self._write_body(b"".join(events))

    async def write(self, *events: bytes) -> None:
        """Send complete events at once; waits while the client does not take what was sent before."""
        body = b"".join(events)
        self.unsent = len(body)
        try:
            await self._send({"type": "http.response.body", "body": body, "more_body": True})
        finally:
            self.unsent = 0
            self._last_write = self._loop.time()

    async def _beat(self) -> None:
        while True:
            silence = self._loop.time() - self._last_write
            if silence < self._heartbeat_s:
                await asyncio.sleep(self._heartbeat_s - silence)
            elif self.unsent:
                await asyncio.sleep(self._heartbeat_s)
            else:
                await self.write(_HEARTBEAT)
