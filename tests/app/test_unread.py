"""What clients do not read is bounded for all of them together: whose answer is the largest is dropped."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from app import server
from app.unread import bound_unread
from tests.app.harness import RawClient, Served, raw_client, serving, until
from tests.fakes import hashed_tokens

_SMALL = 4096
"""Bytes that a client's system takes for it; the rest of an answer stays with the server."""

_LARGE = 1 << 18
"""Less than what either answer has, more than what is on its way to one who reads."""


def completion(prompt: str, max_tokens: int, **fields: Any) -> dict[str, Any]:
    return {"model": "fake", "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, **fields}


def streamed(prompt: str, max_tokens: int, **options: bool) -> dict[str, Any]:
    """A request whose log-probabilities take far more than its text."""
    return completion(prompt, max_tokens, logprobs=20, stream=True, stream_options=options)


def said(prompt: str, count: int) -> str:
    return bytes(hashed_tokens(prompt.encode(), count)).decode()


def unread(served: Served) -> list[int]:
    """Bytes that wait for a client, of each connection that has such."""
    return [connection.unread for connection in served.server.connections if connection.unread]


def bound(served: Served, most: int) -> None:
    bound_unread(served.server.connections, served.state.streams, most)


async def text_of_stream(client: RawClient) -> str | None:
    """None of one that breaks off."""
    stream = b""
    with suppress(ConnectionResetError):
        while piece := await client.reader.read(1 << 20):
            stream += piece
            if b"\ndata: [DONE]\n" in piece:
                chunks = [json.loads(line[6:]) for line in stream.split(b"\n") if line.startswith(b"data: {")]
                return "".join(chunk["choices"][0]["text"] for chunk in chunks)
    return None


async def body_of(client: RawClient) -> Any:
    head = await client.reader.readuntil(b"\r\n\r\n")
    length = int(re.search(rb"content-length: (\d+)", head)[1])  # type: ignore[index]  # or it fails
    return json.loads(await client.reader.readexactly(length))


@asynccontextmanager
async def two_that_do_not_read(
    served: Served, large: dict[str, Any], small: dict[str, Any]
) -> AsyncIterator[tuple[RawClient, RawClient]]:
    """Clients of two completions that were made whole; that of the larger one is dropped by the bound."""
    async with (
        raw_client(served, receive_buffer=_SMALL) as first,
        raw_client(served, receive_buffer=_SMALL) as second,
    ):
        first.post("completions", large)
        second.post("completions", small)
        await until(lambda: sum(size > _LARGE for size in unread(served)) == 2)
        await until(lambda: not served.engine.load().running)
        smaller, larger = sorted(unread(served))
        assert larger > 1.5 * smaller
        bound(served, smaller + larger)
        assert sorted(unread(served)) == [smaller, larger]
        bound(served, smaller + larger - 1)
        await until(lambda: len(unread(served)) == 1)
        yield first, second
    await until(lambda: not unread(served))


async def test_of_streams_the_largest_is_dropped(served: Served) -> None:
    large, small = streamed("a", 3000), streamed("b", 1500)
    async with two_that_do_not_read(served, large, small) as (dropped, kept):
        assert sum(unread(served)) > 1 << 20  # the log-probabilities, not the text
        assert await text_of_stream(dropped) is None
        assert await text_of_stream(kept) == said("b", 1500)


async def test_of_whole_answers_the_largest_is_dropped(served: Served) -> None:
    large, small = (completion(prompt, count, logprobs=20) for prompt, count in (("a", 3000), ("b", 1500)))
    async with two_that_do_not_read(served, large, small) as (dropped, kept):
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await body_of(dropped)
        assert (await body_of(kept))["choices"][0]["text"] == said("b", 1500)


async def test_what_a_stream_without_a_connection_has_to_tell_counts(served: Served) -> None:
    async with raw_client(served) as client:
        client.post("completions", streamed("a", 3000, resumable=True))
        await client.read_events(1)
        (id_,) = served.state.streams.ids
    await until(lambda: not served.engine.load().running)
    ((size, _),) = served.state.streams.unread()
    assert size > 1 << 20
    bound(served, size)
    assert served.state.streams.ids == [id_]
    bound(served, size - 1)
    assert served.state.streams.ids == []
    assert (await served.http.get(f"/v1/streams/{id_}")).status_code == 404


async def test_the_server_looks_by_itself(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server, "MOST_UNREAD", 1 << 20)
    monkeypatch.setattr(server, "_TICKS", 1)
    async with serving() as served:
        async with raw_client(served, receive_buffer=_SMALL) as client:
            client.post("completions", streamed("a", 3000))
            await until(lambda: "had more of its answer unread" in caplog.text)
            assert await text_of_stream(client) is None
        await until(lambda: not served.engine.load().running)
