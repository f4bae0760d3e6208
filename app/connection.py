"""One client's connection: what uvicorn does with it, and bounds on how long and how much.

receive timeout   from a request's first byte (or the connection's beginning) to the end of its headers,
                  and again from there to the end of its body: one who sends a byte now and then, too
write timeout     for the client to take what was written: one who stopped reading is dropped, which its
                  request learns as a disconnect, so its pages are free at once; see `app.unread`, too
head size         bytes of request line and headers, the trailers of a body in chunks included; and of
                  whatever else comes without being a piece of a body
pipeline          requests that are sent before earlier ones were answered; while they wait, nothing more is
                  read, so the receive timeout waits with them
shutdown          a request whose body has not come by then is refused, for nobody knows when it will

Trailers are read and dropped: what the headers decided stays decided. A request that asks for another
protocol is answered in this one (RFC 9110, section 7.8), with its body, which the parser would leave to that
protocol: Java's client asks for HTTP/2 with every first request. A response finds in its scope `HANG_UP`, to
be called so that the connection closes after it, and `WRITE_BODY`, which sends a piece of a body that was
begun in chunks, without waiting, and tells whether the client keeps up.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from functools import partial
from typing import Any

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from app.request_info import RequestInfo
from engine.config import Config

_log = logging.getLogger("radish.app")

HANG_UP = "radish.hang_up"
WRITE_BODY = "radish.write_body"

_MAX_HEAD = 64 * 1024
_AROUND_HEADER = len(b": \r\n")
_MAX_PIPELINE = 128
_FRAMING = frozenset({b"content-length", b"transfer-encoding"})
_HEAD_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
)
_SHUTS_DOWN = (
    b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\nretry-after: 1\r\ncontent-length: 0\r\n\r\n"
)


class Connection(HttpToolsProtocol):
    """uvicorn's protocol with those bounds."""

    receive_timeout_s: float
    write_timeout_s: float

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._receiving: asyncio.TimerHandle | None = None
        self._writing: asyncio.TimerHandle | None = None
        self._unanswered: deque[RequestResponseCycle] = deque()
        """Requests in their order; uvicorn knows the last one."""
        self._is_partial = False
        """Whether a request was begun that has not come to its end."""
        self._in_head = True
        self._head_size = 0
        self._unparsed = 0
        """Bytes that came since the parser made anything of them."""
        self._framing = b""
        """The headers that say where a request's body ends."""
        self._is_repeated = False
        """Whether the parser is given a head whose request is known."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        super().connection_made(transport)
        self._await_more()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_receiving()
        self._end_writing()
        super().connection_lost(exc)
        for cycle in self._unanswered:
            cycle.disconnected = True
            cycle.message_event.set()

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        self._unparsed += len(data)
        try:
            self._parse(data)
        except HttpParserError:
            self.send_400_response("Invalid HTTP request received.")
        if self.transport.is_closing():
            return
        if self._unparsed > _MAX_HEAD:
            self._refuse_head()
        elif len(self.pipeline) > _MAX_PIPELINE:
            self.drop(f"sent more than {_MAX_PIPELINE} requests before their answers")

    def _parse(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            try:
                self.parser.feed_data(rest)
            except HttpParserUpgrade as upgrade:
                rest = rest[upgrade.args[0] :]
                self.parser = HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's
                self._is_repeated = True
                self.parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n" % self._framing)
            else:
                return

    def send_400_response(self, msg: str) -> None:
        if self._head_size > _MAX_HEAD:
            self._refuse_head()
        else:
            super().send_400_response(msg)

    def on_message_begin(self) -> None:
        if self._is_repeated:
            return
        self._framing = b""
        self._in_head = self._is_partial = True
        self._head_size = self._unparsed = 0
        self._await_more()
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        if self._is_repeated:
            return
        self._count_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_repeated:
            return
        if name.lower() in _FRAMING:
            self._framing += b"%b: %b\r\n" % (name, value)
        self._count_head(len(name) + len(value) + _AROUND_HEADER)
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._is_repeated:
            self._is_repeated = False
            return
        self._in_head = False
        super().on_headers_complete()
        self._unanswered.append(self.cycle)
        self._await_more()
        # Not read off the connection later: by then it may have begun to read another request.
        self.scope[WRITE_BODY] = partial(_write_body, self.cycle)  # type: ignore[literal-required]  # of ours
        self.scope[HANG_UP] = partial(setattr, self.cycle, "keep_alive", False)  # type: ignore[literal-required]  # of ours

    def on_body(self, body: bytes) -> None:
        self._unparsed = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self._unparsed = 0
        self._is_partial = False
        self._end_receiving()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self._unanswered.popleft()
        super().on_response_complete()
        if self._is_partial and self._receiving is None and not self.transport.is_closing():
            self._await_more()

    def shutdown(self) -> None:
        super().shutdown()
        if not self._is_partial or self._in_head or not self._unanswered:
            return
        *answered_before, cycle = self._unanswered
        if answered_before:
            answered_before[-1].keep_alive = False
        elif not cycle.response_started:
            self.transport.write(_SHUTS_DOWN)
            self.transport.close()

    def _count_head(self, size: int) -> None:
        """Count what the parser made of a head; an error ends its work, and with it the connection."""
        self._unparsed = 0
        self._head_size += size
        if self._head_size > _MAX_HEAD:
            raise ValueError("the head is too large")

    def _refuse_head(self) -> None:
        self.transport.write(_HEAD_TOO_LARGE)
        self.transport.close()

    @property
    def unread(self) -> int:
        """Bytes of answers that wait for the client to read, estimated."""
        size = self.transport.get_write_buffer_size()
        info = self._unanswered[0].scope.get("radish") if self._unanswered else None
        return size + (info.unread if isinstance(info, RequestInfo) else 0)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._writing = self.loop.call_later(self.write_timeout_s, self.drop, "did not read in time")

    def resume_writing(self) -> None:
        self._end_writing()
        super().resume_writing()

    def _await_more(self) -> None:
        self._end_receiving()
        if self.pipeline:
            return
        self._receiving = self.loop.call_later(
            self.receive_timeout_s, self.drop, "did not send its request in time"
        )

    def _end_receiving(self) -> None:
        if self._receiving is not None:
            self._receiving.cancel()
            self._receiving = None

    def _end_writing(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None

    def drop(self, why: str) -> None:
        """Close the connection at once, which its request learns as a disconnect."""
        _log.warning("dropped a client that %s", why)
        # Closing would wait for it to take what is written.
        self.transport.abort()


def _write_body(cycle: RequestResponseCycle, data: bytes) -> bool:
    """Past the middleware, which has nothing to do with pieces of a body."""
    if cycle.disconnected:
        return False
    cycle.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
    return not cycle.flow.write_paused


def connection_class(config: Config) -> type[Connection]:
    """The connections of a server: uvicorn makes them itself, without arguments of ours."""

    class Configured(Connection):
        receive_timeout_s = config.receive_timeout
        write_timeout_s = config.write_timeout

    return Configured
