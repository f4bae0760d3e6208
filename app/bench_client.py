"""A light streaming client of the OpenAI chat API, for measuring.

In a benchmark client and server often share a machine's cores, so this one does little: `httptools` takes
responses apart as they arrive, and `msgspec` decodes only the fields that are measured.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import httptools
import msgspec


class RequestFailedError(Exception):
    """The server could not be reached, or answered with an error; the message says which.

    Args:
        status: of the answer, if there was one and it was an error.
    """

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class Answer(msgspec.Struct, kw_only=True):
    """What came back for one request. Times are `time.perf_counter()` seconds."""

    sent: float
    ended: float = 0.0
    arrivals: list[float] = msgspec.field(default_factory=list)
    """When each piece of text came."""
    text: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: _PromptDetails | None = None


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta


class _Error(msgspec.Struct):
    message: str


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: _Error | None = None


_decode_event = msgspec.json.Decoder(_Event).decode


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


class Client:
    """One kept-alive connection to the server at `base_url` (with or without `/v1`); one request at a time.

    Raises, from every method:
        RequestFailedError: the server could not be reached, or did not answer as it should.
    """

    def __init__(self, base_url: str, *, api_key: str | None, timeout_s: float) -> None:
        url = urlsplit(base_url)
        if url.scheme not in {"http", "https"} or not url.hostname:
            raise RequestFailedError(f"not an address of a server: {base_url}")
        self._base_url = base_url
        self._host = url.hostname
        self._port = url.port or (443 if url.scheme == "https" else 80)
        self._path = url.path.rstrip("/").removesuffix("/v1")
        self._tls = ssl.create_default_context() if url.scheme == "https" else None
        self._timeout_s = timeout_s
        authorization = f"Authorization: Bearer {api_key}\r\n" if api_key else ""
        self._headers = f"Host: {url.netloc}\r\n{authorization}Content-Type: application/json\r\n"
        self._connection: _Connection | None = None

    async def first_model(self) -> str:
        """The first model that the server lists."""
        body = bytearray()
        await self._exchange("GET", "/v1/models", b"", body.extend)
        try:
            return msgspec.json.decode(body, type=_Models).data[0].id
        except (msgspec.DecodeError, IndexError) as error:
            raise RequestFailedError(f"{self._base_url}/v1/models lists no model: {error}") from error

    async def chat(self, body: dict[str, Any]) -> Answer:
        """Send a streaming chat completion and measure its answer."""
        content = msgspec.json.encode(body)
        answer = Answer(sent=time.perf_counter())
        await self._exchange("POST", "/v1/chat/completions", content, _EventReader(answer).feed)
        answer.ended = time.perf_counter()
        return answer

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def _exchange(
        self, method: str, path: str, content: bytes, on_body: Callable[[bytes], None]
    ) -> None:
        head = f"{method} {self._path}{path} HTTP/1.1\r\n{self._headers}"
        request = f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content
        try:
            async with asyncio.timeout(self._timeout_s):
                status, error = await self._send(request, on_body)
        except TimeoutError:
            self.close()
            raise RequestFailedError(f"no answer within {self._timeout_s:g} s") from None
        except (OSError, httptools.HttpParserError, msgspec.DecodeError) as failure:
            self.close()
            raise RequestFailedError(f"{self._base_url}: {failure}") from failure
        if status != 200:
            raise RequestFailedError(f"{path} answered {status}: {_message(error)}", status=status)

    async def _send(self, request: bytes, on_body: Callable[[bytes], None]) -> tuple[int, bytes]:
        if self._connection is not None and self._connection.reusable:
            try:
                return await self._connection.exchange(request, on_body)
            except OSError:
                # The server may have closed it while this request was on its way: RFC 9112, section 9.5.
                if self._connection.has_answered:
                    raise
        self._connection = await self._connect()
        return await self._connection.exchange(request, on_body)

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(_Connection, self._host, self._port, ssl=self._tls)
        return connection


class _EventReader:
    """Reads server-sent events into an answer, as they come."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._partial = b""

    def feed(self, data: bytes) -> None:
        *lines, self._partial = (self._partial + data).split(b"\n")
        now = time.perf_counter()
        for line in lines:
            if line.startswith(b"data:") and not line.startswith(b"data: [DONE]"):
                self._read(_decode_event(line[5:]), now)

    def _read(self, event: _Event, now: float) -> None:
        answer = self._answer
        if event.error is not None:
            raise RequestFailedError(event.error.message)
        if event.choices and event.choices[0].delta.content:
            answer.text += event.choices[0].delta.content
            answer.arrivals.append(now)
        if event.usage is not None:
            details = event.usage.prompt_tokens_details
            answer.prompt_tokens = event.usage.prompt_tokens
            answer.output_tokens = event.usage.completion_tokens
            answer.cached_tokens = (details.cached_tokens or 0) if details else 0


class _Connection(asyncio.Protocol):
    """HTTP/1.1 on one socket. The methods named on_... are called by `httptools`."""

    def __init__(self) -> None:
        self.reusable = True
        """Whether another request may be sent on it."""
        self._parser = httptools.HttpResponseParser(self)
        self._status = 0
        self._error = bytearray()
        self._done: asyncio.Future[None] | None = None
        self._on_body: Callable[[bytes], None] = self._error.extend

    async def exchange(self, request: bytes, on_body: Callable[[bytes], None]) -> tuple[int, bytes]:
        """Send a request. The body of a 200 goes to `on_body`, that of any other status is returned."""
        self._status, self._error, self._on_body = 0, bytearray(), on_body
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        await self._done
        return self._status, bytes(self._error)

    @property
    def has_answered(self) -> bool:
        """Whether anything came of the answer to the last request."""
        return self._status != 0

    def close(self) -> None:
        self.reusable = False
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._end(error)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc or ConnectionError("the server closed the connection"))

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        if self._status != 200:
            self._error += body
            return
        try:
            self._on_body(body)
        except (RequestFailedError, msgspec.DecodeError) as error:
            self._end(error)

    def on_message_complete(self) -> None:
        self.reusable &= self._parser.should_keep_alive()
        if self._done is not None and not self._done.done():
            self._done.set_result(None)

    def _end(self, error: Exception) -> None:
        """The connection is of no use any more; fail the exchange that is under way, if one is."""
        self.reusable = False
        if self._done is not None and not self._done.done():
            self._done.set_exception(error)
        self._transport.close()


def _message(body: bytes) -> str:
    """What an error answer says, in the API's form or any other."""
    try:
        error = msgspec.json.decode(body, type=_Event).error
    except msgspec.DecodeError:
        error = None
    return error.message if error else body[:200].decode(errors="replace")
