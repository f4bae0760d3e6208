"""A real server on a fake model, and clients for it."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import httpx
import openai
from opentelemetry.trace import TracerProvider

from app.server import HTTPServer, create_app, listen, url_of
from app.state import AppState
from engine.engine import Engine
from tests.fakes import HANGS_S, FakeRunner, assert_quiet, fake_engine, hashed_tokens

CONTROL_PROMPT = "the control prompt"
CONTROL_TEXT = bytes(hashed_tokens(CONTROL_PROMPT.encode(), 12)).decode()


@dataclass
class Served:
    """A running server and what is behind it."""

    url: str
    engine: Engine
    state: AppState
    server: HTTPServer
    http: httpx.AsyncClient

    @property
    def runner(self) -> FakeRunner:
        """Of a fake model."""
        runner = self.engine._loop._runner.runner
        assert isinstance(runner, FakeRunner)
        return runner

    async def chat(self, content: Any = "hi", **fields: Any) -> httpx.Response:
        """POST one user message."""
        return await self.post("chat/completions", {**chat_body(content), **fields})

    async def complete(self, prompt: Any = "hi", **fields: Any) -> httpx.Response:
        """POST a prompt."""
        return await self.post("completions", {"model": "fake", "prompt": prompt, **fields})

    async def post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        return await self.http.post(f"/v1/{path}", json=body)

    def openai(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0)


def chat_body(content: Any = "hi", **fields: Any) -> dict[str, Any]:
    return {"model": "fake", "messages": [{"role": "user", "content": content}], **fields}


@asynccontextmanager
async def serving(*, tracing: TracerProvider | None = None, **settings: Any) -> AsyncIterator[Served]:
    """A server of a fake model; `settings` as `fake_engine` takes them."""
    engine, runner = fake_engine(**{"port": 0, "num_pages": 1024, **settings})
    async with serving_engine(engine, tracing) as served:
        try:
            yield served
        finally:
            runner.resume()


@asynccontextmanager
async def serving_engine(engine: Engine, tracing: TracerProvider | None = None) -> AsyncIterator[Served]:
    """A server of an engine, in this event loop."""
    app = create_app(engine, engine.config, tracing)
    started = asyncio.Event()
    with listen(engine.config) as listener:
        server = HTTPServer(app, engine.config, on_started=started.set)
        task = asyncio.create_task(server.serve([listener]))
        await started.wait()
        url = url_of(listener)
        try:
            async with httpx.AsyncClient(base_url=url, timeout=HANGS_S) as http:
                yield Served(url, engine, app.state.radish, server, http)
        finally:
            server.should_exit = True
            await task


async def until(condition: Any) -> None:
    """Wait for `condition()` to be true."""
    async with asyncio.timeout(HANGS_S):
        while not condition():  # noqa: ASYNC110  nothing tells when
            await asyncio.sleep(0.001)


async def become_quiet(served: Served, known_tasks: set[asyncio.Task[Any]]) -> None:
    """The quiet state: nothing runs or waits, pages add up, no task is left, and the control prompt has
    its known text."""
    served.runner.resume()
    served.runner.script = lambda row: None
    served.runner.fails = lambda batch: False
    await until(lambda: served.engine.load().running + served.engine.load().waiting == 0)
    await until(lambda: not server_tasks() - known_tasks)
    response = await served.complete(CONTROL_PROMPT, max_tokens=12, temperature=0)
    assert response.json()["choices"][0]["text"] == CONTROL_TEXT
    assert (await served.http.get("/health")).status_code == 200
    assert_quiet(served.engine)


def server_tasks() -> set[asyncio.Task[Any]]:
    """Every task of this event loop but those that run the tests."""
    runner = f"{os.sep}anyio{os.sep}"
    return {
        task
        for task in asyncio.all_tasks() - {asyncio.current_task()}
        if runner not in task.get_coro().cr_code.co_filename  # type: ignore[union-attr]  # all are coroutines
    }


def events(text: str) -> list[Any]:
    """The data of a stream's events, parsed, without `[DONE]`, which must be the last."""
    *data, done = [line.removeprefix("data: ") for line in text.split("\n\n") if line.startswith("data: ")]
    assert done == "[DONE]"
    assert text.endswith("data: [DONE]\n\n")
    return [json.loads(item) for item in data]


def error_of(response: httpx.Response) -> dict[str, Any]:
    """The error of a refused request; checks its shape."""
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"]
    body = json.loads(response.content.decode("utf-8"))
    assert list(body) == ["error"]
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    error: dict[str, Any] = body["error"]
    return error


class RawClient:
    """A client that sends bytes and can hang up at any moment."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def post(self, path: str, body: dict[str, Any]) -> None:
        """Send a request with a JSON body."""
        data = json.dumps(body).encode()
        head = f"POST /v1/{path} HTTP/1.1\r\nHost: test\r\nContent-Length: {len(data)}\r\n\r\n"
        self.writer.write(head.encode() + data)

    async def read_events(self, count: int) -> list[Any]:
        """Read the headers, if they are still to come, and `count` events."""
        found: list[Any] = []
        while len(found) < count:
            line = await self.reader.readline()
            assert line, "the connection was closed"
            if line.startswith(b"data: "):
                found.append(json.loads(line[6:]))
        return found

    async def hang_up(self) -> None:
        """Close the connection; the server learns of it by a reset."""
        self.writer.transport.abort()
        with suppress(ConnectionError):
            await self.writer.wait_closed()


@asynccontextmanager
async def raw_client(served: Served, *, receive_buffer: int | None = None) -> AsyncIterator[RawClient]:
    """A connection, hung up at the end if not before."""
    connection = socket.socket()
    connection.setblocking(False)
    if receive_buffer is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    address = ("127.0.0.1", int(served.url.rpartition(":")[2]))
    await asyncio.get_running_loop().sock_connect(connection, address)
    client = RawClient(*await asyncio.open_connection(sock=connection))
    try:
        yield client
    finally:
        await client.hang_up()
