"""Bytes that are no request, or two that pretend to be one: refused, and nothing else is."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from app.connection import Connection
from tests.app.harness import Served, become_quiet, raw_client, server_tasks, serving, until
from tests.fakes import HANGS_S

KEY = "alice-1"
BODY = b'{"model": "fake", "prompt": "x", "max_tokens": 1}'
LAST = b"Host: x\r\nConnection: close\r\n\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer alice-1\r\n"


@pytest.fixture(scope="module")
async def locked_server() -> AsyncIterator[Served]:
    async with serving(api_key=(KEY,)) as server:
        yield server


@pytest.fixture
async def locked(locked_server: Served) -> AsyncIterator[Served]:
    """A server that wants a key, quiet afterwards."""
    known = server_tasks()
    locked_server.http.headers["authorization"] = f"Bearer {KEY}"
    yield locked_server
    await become_quiet(locked_server, known)


async def answers(served: Served, data: bytes) -> list[int]:
    """The statuses that come back until the server closes the connection."""
    async with raw_client(served) as client, asyncio.timeout(HANGS_S):
        client.writer.write(data)
        text = await client.reader.read()
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3})", text)]


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"hello\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /v1/models HTTP/3.7\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"FROB /v1/models HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nHost x\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nHost: x\r\nA\x00B: c\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization : Bearer alice-1\r\n\r\n",
        POST + b"Content-Length: -1\r\n\r\n",
        POST + b"Content-Length: 1e2\r\n\r\n",
        POST + b"Content-Length: 49, 49\r\n\r\n" + BODY,
        POST + b"Content-Length: 49\r\nContent-Length: 50\r\n\r\n" + BODY,
        POST + b"Content-Length: 49\r\nTransfer-Encoding: chunked\r\n\r\n" + BODY,
        POST + b"Transfer-Encoding: chunked\r\n\r\nZZ\r\n" + BODY,
        POST + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n" + BODY,
    ],
    ids=lambda data: repr(data[-40:]),
)
async def test_what_is_no_request_is_a_400(locked: Served, data: bytes) -> None:
    started = locked.engine.stats.started
    assert await answers(locked, data) in ([400], [400, 400])
    assert locked.engine.stats.started == started


@pytest.mark.parametrize(
    ("data", "statuses"),
    [
        (b"GET /v1/models HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n" + LAST, [401]),
        (b"GET /v1/models HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n" + LAST, [401]),
        (b"OPTIONS * HTTP/1.1\r\n" + LAST, [401]),
        (b"CONNECT localhost:80 HTTP/1.1\r\n" + LAST, [400]),
        (b"GET /v1/models HTTP/1.0\r\n\r\n", [401]),
        (b"GET http://health/v1/models HTTP/1.1\r\n" + LAST, [401]),
        (b"GET /v1/models HTTP/1.1\r\nHost: x\r\nX-Api-Key:\r\n alice-1\r\n\r\n", [400]),
    ],
    ids=lambda value: repr(value[:60]) if isinstance(value, bytes) else "",
)
async def test_no_form_of_a_request_does_without_a_key(
    locked: Served, data: bytes, statuses: list[int]
) -> None:
    assert await answers(locked, data) == statuses


@pytest.mark.parametrize("first", ["/health", "/v1/models"])
async def test_each_request_of_a_connection_needs_its_own_key(locked: Served, first: str) -> None:
    async with raw_client(locked) as client, asyncio.timeout(HANGS_S):
        client.writer.write(f"GET {first} HTTP/1.1\r\nHost: x\r\nX-Api-Key: {KEY}\r\n\r\n".encode())
        client.writer.write(b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b" 200 " in await client.reader.readline()
        await client.reader.readuntil(b"HTTP/1.1 401 ")


CHUNKED = b"Transfer-Encoding: chunked\r\n"
CHUNK = b"%x\r\n%s\r\n" % (len(BODY), BODY)


async def test_a_key_behind_the_body_is_none(locked: Served) -> None:
    started = locked.engine.stats.started
    post = b"POST /v1/completions HTTP/1.1\r\n" + CHUNKED + LAST + CHUNK
    assert await answers(locked, post + b"0\r\nAuthorization: Bearer alice-1\r\n\r\n") == [401]
    assert locked.engine.stats.started == started


async def test_trailers_change_nothing(locked: Served) -> None:
    trailers = b"0\r\nContent-Encoding: gzip\r\nX-Api-Key: no\r\nX-Request-Timeout: -1\r\n\r\n"
    assert await answers(locked, POST + CHUNKED + LAST + CHUNK + trailers) == [200]


@pytest.mark.parametrize(
    "data",
    [
        b"GET /health HTTP/1.1\r\n" + b"A: b\r\n" * 120_000 + b"\r\n",
        b"GET /health HTTP/1.1\r\nA: " + b"b" * 600_000 + b"\r\n\r\n",
        b"GET /health HTTP/1.1\r\nA: " + b"b" * 600_000,
        POST + CHUNKED + b"\r\n" + CHUNK + b"0\r\n" + b"A: b\r\n" * 120_000,
        POST + CHUNKED + b"\r\n" + CHUNK + b"0\r\nA: " + b"b" * 600_000,
        POST + CHUNKED + b"\r\n1;" + b"b" * 600_000,
    ],
    ids=["headers", "header", "endless header", "trailers", "endless trailer", "endless extension"],
)
async def test_heads_and_what_is_around_a_body_are_bounded(locked: Served, data: bytes) -> None:
    text = b"HTTP/1.1 431 "
    async with raw_client(locked) as client, asyncio.timeout(HANGS_S):
        with suppress(ConnectionError):  # a connection that is closed with something unread is reset
            client.writer.write(data)
            await client.writer.drain()
            text = await client.reader.read()
    assert text.startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize("coding", [b"gzip, chunked", b"deflate,chunked"])
async def test_a_compressed_transfer_is_refused(locked: Served, coding: bytes) -> None:
    head = POST + b"Transfer-Encoding: " + coding + b"\r\n" + LAST
    assert await answers(locked, head + CHUNK + b"0\r\n\r\n") == [501]


async def test_requests_ahead_of_their_answers_are_bounded(
    locked: Served, caplog: pytest.LogCaptureFixture
) -> None:
    get = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
    last = b"GET /health HTTP/1.1\r\n" + LAST
    assert await answers(locked, get * 100 + last) == [200] * 101
    async with raw_client(locked) as client, asyncio.timeout(HANGS_S):
        client.writer.write(get * 1000)
        with suppress(ConnectionError):
            assert (await client.reader.read()).count(b"HTTP/1.1") < 1000
    assert "more than 128 requests" in caplog.text


def only_connection(served: Served) -> Connection:
    (connection,) = served.server.server_state.connections
    assert isinstance(connection, Connection)
    return connection


async def test_who_asked_ahead_may_leave_too() -> None:
    """The answer that is running learns of it, not only the request that came last."""
    async with serving(max_context=4000) as served:
        known = server_tasks()
        served.runner.pause()
        async with raw_client(served) as client:
            endless = {"model": "fake", "prompt": "x", "max_tokens": 3000, "ignore_eos": True}
            client.post("completions", {**endless, "stream": True})
            await until(lambda: served.engine.load().running == 1)
            client.writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            connection = only_connection(served)
            await until(lambda: connection.pipeline)
        served.runner.resume()
        await until(lambda: served.engine.load().running == 0)
        assert served.engine.stats.finished["abort"] == 1
        await become_quiet(served, known)


async def test_a_request_that_is_not_read_yet_is_no_slow_one() -> None:
    """It has its time from when the answer before it is given."""
    async with serving(receive_timeout=0.05) as served, raw_client(served) as client:
        served.runner.pause()
        client.post("completions", {"model": "fake", "prompt": "x", "max_tokens": 1})
        await until(lambda: served.engine.load().running == 1)
        client.writer.write(b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{")
        connection = only_connection(served)
        await until(lambda: connection.pipeline)
        assert connection._receiving is None
        served.runner.resume()
        text = b""
        with suppress(ConnectionError):
            while some := await client.reader.read(1 << 16):
                text += some
        assert text.startswith(b"HTTP/1.1 200 ")
        assert text.count(b"HTTP/1.1") == 1


async def test_the_head_of_the_live_feed_ends(locked: Served) -> None:
    head = b"HEAD /live HTTP/1.1\r\nHost: x\r\nX-Api-Key: alice-1\r\n\r\n"
    assert await answers(locked, head + b"GET /health HTTP/1.1\r\n" + LAST) == [200, 200]


UPGRADE = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAAB\r\n"


@pytest.mark.parametrize(
    "body",
    [b"Content-Length: %d\r\n\r\n%b" % (len(BODY), BODY), CHUNKED + b"\r\n" + CHUNK + b"0\r\n\r\n"],
    ids=["length", "chunks"],
)
@pytest.mark.parametrize("size", [1 << 20, 1, 90], ids=lambda size: f"pieces of {size}")
async def test_an_upgrade_that_is_not_made_changes_nothing(locked: Served, body: bytes, size: int) -> None:
    """Nor is it a way in, or to the requests behind it."""
    data = POST + UPGRADE + body
    data += b"GET /v1/models HTTP/1.1\r\n" + UPGRADE + b"\r\n"
    data += b"GET /health HTTP/1.1\r\n" + LAST
    async with raw_client(locked) as client, asyncio.timeout(HANGS_S):
        for start in range(0, len(data), size):
            client.writer.write(data[start : start + size])
            await asyncio.sleep(0)
        text = await client.reader.read()
    assert re.findall(rb"HTTP/1\.1 (\d{3})", text) == [b"200", b"401", b"200"]
    assert b'"finish_reason":"length"' in text


async def test_a_body_in_chunks_is_a_body(locked: Served) -> None:
    chunks = b"%x\r\n%s\r\n%x\r\n%s\r\n0\r\n\r\n" % (10, BODY[:10], len(BODY) - 10, BODY[10:])
    assert await answers(locked, POST + b"Transfer-Encoding: chunked\r\n" + LAST + chunks) == [200]
