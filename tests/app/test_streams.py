"""Streams that are gone on with after their connection broke off, and what is left of them: nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.errors import ApiError
from app.recording import Recording
from tests.app.harness import (
    RawClient,
    Served,
    become_quiet,
    chat_body,
    error_of,
    raw_client,
    server_tasks,
    serving,
    until,
)
from tests.fakes import hashed_tokens

RESUMABLE = {"stream": True, "stream_options": {"resumable": True, "include_usage": True}}


def numbered(text: str) -> list[tuple[int, str]]:
    """The id and the data of every event; comments are left out."""
    found = []
    for block in text.split("\n\n"):
        if block.startswith("id: "):
            id_, data = block.split("\n")
            found.append((int(id_[4:]), data.removeprefix("data: ")))
    return found


def text_of(events: list[tuple[int, str]]) -> str:
    chunks = [json.loads(data) for _, data in events if data != "[DONE]"]
    return "".join(choice["text"] for chunk in chunks for choice in chunk["choices"])


def expected_text(prompt: str, count: int) -> str:
    return bytes(hashed_tokens(prompt.encode(), count)).decode()


async def rest(served: Served, id_: str, after: int) -> list[tuple[int, str]]:
    headers = {"Last-Event-ID": str(after)}
    response = await served.http.get(f"/v1/streams/{id_}", headers=headers)
    assert response.status_code == 200, response.text
    return numbered(response.text)


@contextmanager
def forgotten(served: Served) -> Iterator[None]:
    """Afterwards no stream is kept: the module's server outlives the test."""
    try:
        yield
    finally:
        served.state.streams.close()


@pytest.fixture
async def kept(served: Served) -> AsyncIterator[Served]:
    with forgotten(served):
        yield served


async def test_events_are_numbered_and_the_stream_has_a_place(kept: Served) -> None:
    response = await kept.complete("abc", max_tokens=6, **RESUMABLE)
    events = numbered(response.text)
    assert [id_ for id_, _ in events] == list(range(1, len(events) + 1))
    assert events[-1][1] == "[DONE]"
    assert text_of(events) == expected_text("abc", 6)
    answer = json.loads(events[0][1])["id"]
    assert response.headers["content-location"] == f"/v1/streams/{answer}"
    for after in range(len(events)):
        assert await rest(kept, answer, after) == events[after:]
    over = await kept.http.get(f"/v1/streams/{answer}", headers={"Last-Event-ID": str(len(events))})
    assert (over.status_code, over.content) == (204, b"")


async def test_a_plain_stream_has_neither(kept: Served) -> None:
    response = await kept.complete("abc", max_tokens=6, stream=True)
    assert numbered(response.text) == []
    assert "content-location" not in response.headers
    assert len(kept.state.streams) == 0


async def test_openais_client_reads_it_as_any_stream(kept: Served) -> None:
    async with kept.openai() as client:
        stream = await client.completions.create(
            model="fake",
            prompt="abc",
            max_tokens=6,
            stream=True,
            extra_body={"stream_options": {"resumable": True}},
        )
        assert "".join([chunk.choices[0].text async for chunk in stream]) == expected_text("abc", 6)


async def lose(served: Served, client: RawClient, body: dict[str, Any]) -> tuple[str, list[dict[str, Any]]]:
    """Begin a stream, take three events, and break the connection; gives the stream's id."""
    client.post("completions", {"model": "fake", **body, **RESUMABLE})
    seen = await client.read_events(3)
    served.runner.pause()
    await client.hang_up()
    return seen[0]["id"], seen


async def test_a_broken_connection_loses_nothing(kept: Served) -> None:
    async with raw_client(kept) as client:
        id_, seen = await lose(kept, client, {"prompt": "xyz", "max_tokens": 40})
    kept.runner.resume()
    await until(lambda: kept.engine.load().running == 0)
    assert kept.engine.stats.finished["abort"] == 0
    events = await rest(kept, id_, 3)
    assert events[0][0] == 4
    joined = "".join(chunk["choices"][0]["text"] for chunk in seen) + text_of(events)
    assert joined == expected_text("xyz", 40)
    assert json.loads(events[-2][1])["usage"]["completion_tokens"] == 40


async def test_a_stream_is_gone_on_with_while_it_runs(kept: Served) -> None:
    async with raw_client(kept) as client:
        id_, _ = await lose(kept, client, {"prompt": "run", "max_tokens": 30})
    reading = asyncio.create_task(rest(kept, id_, 0))
    await until(lambda: kept.state.streams.get(id_).readers == 1)
    assert kept.engine.load().running == 1
    kept.runner.resume()
    assert text_of(await reading) == expected_text("run", 30)


async def test_a_newer_connection_takes_the_place_of_an_older(kept: Served) -> None:
    kept.runner.pause()
    body = {"model": "fake", "prompt": "two", "max_tokens": 5, **RESUMABLE}
    first = asyncio.create_task(kept.http.post("/v1/completions", json=body))
    await until(lambda: len(kept.state.streams) == 1)
    (id_,) = kept.state.streams.ids
    await until(lambda: kept.state.streams.get(id_).readers == 1)
    second = asyncio.create_task(rest(kept, id_, 0))
    response = await first
    assert json.loads(response.text.split("data: ")[1])["error"]["code"] == "stream_taken_over"
    kept.runner.resume()
    assert text_of(await second) == expected_text("two", 5)


async def test_it_is_forgotten_when_nobody_comes_back() -> None:
    async with serving(resume_timeout=0.05) as served:
        known = server_tasks()
        async with raw_client(served) as client:
            id_, _ = await lose(served, client, {"prompt": "gone", "max_tokens": 2000, "ignore_eos": True})
        served.runner.resume()
        await until(lambda: served.engine.stats.finished["abort"] == 1)
        assert error_of(await served.http.get(f"/v1/streams/{id_}"))["code"] == "stream_not_found"
        await become_quiet(served, known)


async def test_it_can_be_ended(kept: Served) -> None:
    before = kept.engine.stats.finished["abort"]
    async with raw_client(kept) as client:
        id_, _ = await lose(kept, client, {"prompt": "end", "max_tokens": 2000, "ignore_eos": True})
    deleted = await kept.http.delete(f"/v1/streams/{id_}")
    assert deleted.json() == {"id": id_, "object": "stream", "deleted": True}
    assert kept.engine.stats.finished["abort"] == before + 1
    assert (await kept.http.get(f"/v1/streams/{id_}")).status_code == 404


async def test_a_failure_is_kept_too(kept: Served) -> None:
    async with raw_client(kept) as client:
        id_, _ = await lose(kept, client, {"prompt": "fail", "max_tokens": 40})
    kept.runner.fails = lambda batch: True
    kept.runner.resume()
    *_, (_, failure), (_, done) = await rest(kept, id_, 3)
    assert json.loads(failure)["error"]["type"] == "server_error"
    assert done == "[DONE]"


@pytest.mark.parametrize("given", ["-1", "x", "1.5", "9" * 30, "²"])
async def test_what_is_no_event_id_is_refused(kept: Served, given: str) -> None:
    response = await kept.complete("abc", max_tokens=2, **RESUMABLE)
    place = response.headers["content-location"]
    refused = await kept.http.get(place, headers=[(b"Last-Event-ID", given.encode())])
    assert (refused.status_code, error_of(refused)["param"]) == (400, "Last-Event-ID")


async def test_it_needs_a_stream(kept: Served) -> None:
    refused = await kept.chat(stream_options={"resumable": True})
    assert error_of(refused)["param"] == "stream_options"


async def test_a_stream_is_its_keys_own_and_counts_until_it_ends(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("key-of-anna concurrency=1\nkey-of-bert\n")
    async with serving(api_key_file=str(keys)) as served:
        anna, bert = ({"Authorization": f"Bearer key-of-{name}"} for name in ("anna", "bert"))
        served.runner.pause()
        body = chat_body(max_tokens=5, **RESUMABLE)
        async with httpx.AsyncClient(base_url=served.url, headers=anna) as http:
            async with http.stream("POST", "/v1/chat/completions", json=body) as response:
                place = response.headers["content-location"]
            busy = await http.post("/v1/chat/completions", json=chat_body(max_tokens=1))
            assert error_of(busy)["code"] == "key_concurrency"
            assert (await served.http.get(place, headers=bert)).status_code == 404
            assert (await served.http.delete(place, headers=bert)).status_code == 404
            served.runner.resume()
            assert numbered((await http.get(place)).text)[-1][1] == "[DONE]"
            assert (await http.post("/v1/chat/completions", json=chat_body(max_tokens=1))).status_code == 200


async def test_only_so_many_are_kept(kept: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept.state.streams, "_capacity", 2)
    ids = []
    for prompt in ("a", "b", "c"):
        response = await kept.complete(prompt, max_tokens=2, **RESUMABLE)
        ids.append(json.loads(numbered(response.text)[0][1])["id"])
    assert (await kept.http.get(f"/v1/streams/{ids[0]}")).status_code == 404
    assert text_of(await rest(kept, ids[1], 0)) == expected_text("b", 2)
    kept.state.streams.close()
    kept.runner.pause()
    body = {"model": "fake", "prompt": "busy", "max_tokens": 2, **RESUMABLE}
    running = [asyncio.create_task(kept.http.post("/v1/completions", json=body)) for _ in range(2)]
    await until(lambda: len(kept.state.streams) == 2)
    refused = await kept.complete("d", max_tokens=2, **RESUMABLE)
    assert (refused.status_code, error_of(refused)["code"]) == (429, "streams_full")
    kept.runner.resume()
    for task in running:
        assert text_of(numbered((await task).text)) == expected_text("busy", 2)


async def test_a_released_writer_waits_for_nobody_and_keeps_the_last() -> None:
    recording = Recording(limit=1000)
    writing = asyncio.create_task(_write(recording, 100))
    await asyncio.sleep(0)
    assert not writing.done()
    recording.release()
    await writing
    with pytest.raises(ApiError) as lost:
        recording.read(0)
    assert (lost.value.status, lost.value.detail.code) == (410, "events_lost")
    rest = [piece async for piece in recording.read(95)]
    assert numbered(b"".join(rest).decode()) == [(n, str(n)) for n in range(96, 101)]


async def test_a_reader_of_a_released_writer_loses_nothing_from_then_on() -> None:
    recording = Recording(limit=1000)
    recording.release()
    writing = asyncio.create_task(_write(recording, 100))
    pieces = recording.read(0)
    await asyncio.sleep(0)
    assert not writing.done()
    found = b"".join([piece async for piece in pieces])
    assert numbered(found.decode()) == [(n, str(n)) for n in range(1, 101)]


async def test_a_writer_waits_for_a_reader_and_read_events_make_room() -> None:
    recording = Recording(limit=1000)
    writing = asyncio.create_task(_write(recording, 100))
    await asyncio.sleep(0)
    assert not writing.done()
    pieces = [piece async for piece in recording.read(0)]
    assert numbered(b"".join(pieces).decode()) == [(n, str(n)) for n in range(1, 101)]
    with pytest.raises(ApiError) as lost:
        recording.read(0)
    assert (lost.value.status, lost.value.detail.code) == (410, "events_lost")
    assert recording.is_over(100)
    again = [piece async for piece in recording.read(95)]
    assert numbered(b"".join(again).decode()) == [(n, str(n)) for n in range(96, 101)]
    with pytest.raises(ApiError) as early:
        recording.read(101)
    assert early.value.status == 400


async def _write(recording: Recording, count: int) -> None:
    for number in range(1, count + 1):
        await recording.write(b"data: %d\n\n" % number)
    recording.complete()
