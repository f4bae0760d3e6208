"""One client's connection: what uvicorn does with it, and bounds on how long and how much.

receive timeout   from a request's first byte (or the connection's beginning) to the end of its headers,
                  and again from there to the end of its body: one who sends a byte now and then, too
write timeout     for the client to take what was written: one who stopped reading is dropped, which its
                  request learns as a disconnect, so its pages are free at once
head size         bytes of request line and headers

A response may ask in its scope, by calling `HANG_UP`, that the connection closes after it.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from engine.config import Config

_log = logging.getLogger("radish.app")

HANG_UP = "radish.hang_up"

_MAX_HEAD = 64 * 1024
_HEAD_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
)


class Connection(HttpToolsProtocol):
    """uvicorn's protocol with those bounds."""

    receive_timeout_s: float
    write_timeout_s: float

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._receiving: asyncio.TimerHandle | None = None
        self._writing: asyncio.TimerHandle | None = None
        self._in_head = True
        self._head_size = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        super().connection_made(transport)
        self._await_more()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_receiving()
        self._end_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self._in_head:
            return
        self._head_size += len(data)
        if self._head_size > _MAX_HEAD and not self.transport.is_closing():
            self.transport.write(_HEAD_TOO_LARGE)
            self.transport.close()

    def on_message_begin(self) -> None:
        self._in_head = True
        self._head_size = 0
        self._await_more()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._await_more()
        super().on_headers_complete()
        # Not read off the connection later: by then it may have begun to read another request.
        self.scope[HANG_UP] = partial(setattr, self.cycle, "keep_alive", False)  # type: ignore[literal-required]  # of ours

    def on_message_complete(self) -> None:
        self._head_size = 0
        self._end_receiving()
        super().on_message_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._writing = self.loop.call_later(self.write_timeout_s, self._drop, "did not read")

    def resume_writing(self) -> None:
        self._end_writing()
        super().resume_writing()

    def _await_more(self) -> None:
        self._end_receiving()
        self._receiving = self.loop.call_later(self.receive_timeout_s, self._drop, "did not send its request")

    def _end_receiving(self) -> None:
        if self._receiving is not None:
            self._receiving.cancel()
            self._receiving = None

    def _end_writing(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None

    def _drop(self, why: str) -> None:
        _log.warning("dropped a client that %s in time", why)
        # Closing would wait for it to take what is written.
        self.transport.abort()


def connection_class(config: Config) -> type[Connection]:
    """The connections of a server: uvicorn makes them itself, without arguments of ours."""

    class Configured(Connection):
        receive_timeout_s = config.receive_timeout
        write_timeout_s = config.write_timeout

    return Configured
