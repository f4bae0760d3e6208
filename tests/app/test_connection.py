"""Slow, stalled and idle clients on real sockets."""

from __future__ import annotations

import asyncio
import json
import resource
from collections.abc import Iterator
from contextlib import AsyncExitStack, suppress

import pytest

from app.connection import Connection
from tests.app.harness import (
    CONTROL_PROMPT,
    CONTROL_TEXT,
    RawClient,
    Served,
    become_quiet,
    chat_body,
    raw_client,
    server_tasks,
    serving,
    until,
)

ENDLESS = {"ignore_eos": True, "max_tokens": 3900, "logprobs": True, "top_logprobs": 20}


@pytest.fixture
def many_files() -> Iterator[None]:
    """Room for both ends of all connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(4096, hard)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def read_to_the_end(client: RawClient) -> None:
    """The server ends the connection without a word."""
    with suppress(ConnectionResetError):
        assert await client.reader.read() == b""


async def test_a_stalled_reader_is_dropped_and_its_pages_are_free() -> None:
    async with serving(write_timeout=0.1, max_context=4000) as served:
        known = server_tasks()
        async with raw_client(served, receive_buffer=4096) as client:
            client.post("chat/completions", chat_body(**ENDLESS, stream=True))
            # The answer is larger than all buffers, so it cannot end but by being dropped.
            await until(lambda: served.engine.stats.finished["abort"] == 1)
            pages = served.engine.load().pages
            assert pages.private + pages.protected == 0
        await become_quiet(served, known)


async def test_a_stalled_reader_is_noticed_before_megabytes_are_buffered() -> None:
    """An answer of 1.3 MB does not disappear in the kernel, which would take up to 4 MB."""
    async with (
        serving(write_timeout=0.1, max_context=4000) as served,
        raw_client(served, receive_buffer=4096) as client,
    ):
        client.post("chat/completions", chat_body(**{**ENDLESS, "max_tokens": 1000}, stream=True))
        await until(lambda: sum(served.engine.stats.finished.values()) == 1)
        await until(lambda: not served.server.server_state.connections)
        text = b""
        with suppress(ConnectionResetError):
            while some := await client.reader.read(1 << 20):
                text += some
        assert b"[DONE]" not in text


async def test_a_reader_that_reads_late_gets_everything() -> None:
    async with (
        serving(write_timeout=60, max_context=4000) as served,
        raw_client(served, receive_buffer=4096) as client,
    ):
        client.post("chat/completions", chat_body(**{**ENDLESS, "max_tokens": 1500}, stream=True))
        await until(lambda: served.engine.stats.finished["length"] == 1)
        text = b""
        while b"data: [DONE]" not in text:
            text += await client.reader.read(1 << 20)
        chunks = [json.loads(line[6:]) for line in text.split(b"\n") if line.startswith(b"data: {")]
        said = [choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"]]
        assert len("".join(said)) == 1500


@pytest.mark.parametrize(
    "begin",
    [
        b"",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{",
    ],
    ids=["nothing", "headers", "body"],
)
async def test_who_sends_no_whole_request_is_dropped(begin: bytes) -> None:
    async with serving(receive_timeout=0.05) as served, raw_client(served) as client:
        client.writer.write(begin)
        await read_to_the_end(client)
        assert served.engine.stats.started == 0


async def test_bytes_now_and_then_do_not_count_as_a_request() -> None:
    async with serving(receive_timeout=0.2) as served, raw_client(served) as client:
        client.writer.write(b"GET /health HTTP/1.1\r\n")
        ended = asyncio.create_task(read_to_the_end(client))
        while not ended.done():
            client.writer.write(b"X-A: b\r\n")
            await asyncio.sleep(0.001)
        await ended


async def test_a_long_answer_is_no_slow_request() -> None:
    """The receive timeout ends with the request, not with the answer."""
    async with serving() as served:
        served.runner.pause()
        asking = asyncio.create_task(served.complete(CONTROL_PROMPT, max_tokens=12))
        await until(lambda: served.engine.load().running == 1)
        (connection,) = served.server.server_state.connections
        assert isinstance(connection, Connection)
        assert connection._receiving is None
        served.runner.resume()
        assert (await asking).json()["choices"][0]["text"] == CONTROL_TEXT


async def test_headers_are_bounded(served: Served) -> None:
    async with raw_client(served) as client:
        client.writer.write(b"GET /health HTTP/1.1\r\nX-Long: " + b"a" * 200_000)
        assert b" 431 " in await client.reader.readline()
    async with raw_client(served) as client:
        client.writer.write(b"GET /health HTTP/1.1\r\nX-Long: " + b"a" * 20_000 + b"\r\n\r\n")
        assert b" 200 " in await client.reader.readline()


@pytest.mark.usefixtures("many_files")
async def test_many_streams_and_idle_connections() -> None:
    """500 streams beside 1000 kept connections: no error, every text whole, gauges exact afterwards."""
    async with serving(num_pages=8192, max_running=256, max_batch_tokens=1024) as served:
        known = server_tasks()
        async with AsyncExitStack() as stack:
            idle = [await stack.enter_async_context(raw_client(served)) for _ in range(1000)]
            for client in idle:
                client.writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            for client in idle:
                assert b"ok" in await client.reader.readuntil(b"}")
            streams = [await stack.enter_async_context(raw_client(served)) for _ in range(500)]
            for client in streams:
                body = {"model": "fake", "prompt": CONTROL_PROMPT, "max_tokens": 12, "stream": True}
                client.post("completions", body)
            for client in streams:
                text = await client.reader.readuntil(b"data: [DONE]\n\n")
                chunks = [json.loads(line[6:]) for line in text.split(b"\n") if line.startswith(b"data: {")]
                said = "".join(choice["text"] for chunk in chunks for choice in chunk["choices"])
                assert said == CONTROL_TEXT
            assert served.engine.stats.finished["length"] == 500
            await until(lambda: len(served.server.server_state.connections) == 1500)
        await until(lambda: len(served.server.server_state.connections) == 0)
        await become_quiet(served, known)
