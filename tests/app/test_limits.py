"""Every limit on what a request may hold: one more than it is a 400 or 413 that names it."""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import AsyncExitStack
from typing import Any

import pytest

from app.bodies import _FREE
from tests.app.harness import Served, chat_body, error_of, raw_client, serving, until
from tests.fakes import HANGS_S

MESSAGE = {"role": "user", "content": "x"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
DESCRIBED = {"type": "function", "function": {"name": "f", "description": "x" * 200_000, "parameters": {}}}
PART = {"type": "text", "text": ""}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def nested(depth: int) -> Any:
    value: Any = {}
    for _ in range(depth):
        value = {"properties": {"a": value}}
    return value


def schema(value: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": value}}}


@pytest.mark.parametrize(
    ("fields", "param", "limit"),
    [
        ({"messages": [MESSAGE] * 4097}, "messages", "4096"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": ""}] * 1025}]},
            "content",
            "1024",
        ),
        ({"messages": [MESSAGE, {"role": "assistant", "tool_calls": [CALL] * 129}]}, "tool_calls", "128"),
        ({"messages": [{"role": "user", "content": "x" * 200_000}]}, "messages", "4096 tokens"),
        ({"stop": ["x"] * 17}, "stop", "16"),
        ({"stop": ["x" * 1025]}, "stop", "1024"),
        ({"stop_token_ids": [1] * 257}, "stop_token_ids", "256"),
        ({"logit_bias": {str(n): 1 for n in range(1025)}}, "logit_bias", "1024"),
        ({"bad_words": ["x"] * 257}, "bad_words", "256"),
        ({"bad_words": [f"{n}" * 1024 for n in range(9)]}, "bad_words", "8192"),
        ({"n": 129}, "n", "128"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "20"),
        ({"max_tokens": 5000}, "max_tokens", "4096"),
        ({"tools": [TOOL] * 129}, "tools", "128"),
        (schema(nested(50)), "response_format", "64"),
        (schema({"enum": [f"{n}" for n in range(20_001)]}), "response_format", "20000"),
        (schema({"const": "x" * 300_000}), "response_format", "262144"),
        ({"guided_regex": "a" * 300_000}, "guided_regex", "262144"),
        ({"guided_grammar": 'root ::= "' + "a" * 300_000 + '"'}, "guided_grammar", "262144"),
        ({"guided_choice": ["x" * 300_000]}, "guided_choice", "262144"),
        ({"unknown": json.loads("[" * 128 + "]" * 128)}, None, "128"),
        ({f"unknown {n}": 0 for n in range(257)}, None, "256"),
        ({"allowed_token_ids": [1] * 273}, "allowed_token_ids", "272"),
        ({"messages": [{"role": "user", "content": "x" * 200_000}], "truncate_prompt_tokens": 1}, "", "4096"),
    ],
)
async def test_a_limit_is_named(
    served: Served, fields: dict[str, Any], param: str | None, limit: str
) -> None:
    started = served.engine.stats.started
    response = await served.http.post("/v1/chat/completions", json={**chat_body(max_tokens=1), **fields})
    error = error_of(response)
    assert response.status_code == 400
    assert limit in error["message"]
    assert (param or "") in (error["param"] or "")
    assert served.engine.stats.started == started


async def test_prompts_and_choices_are_counted_together(served: Served) -> None:
    response = await served.complete(["x"] * 9, n=128, max_tokens=1)
    assert response.status_code == 400
    assert "at most 8" in error_of(response)["message"]


async def test_more_token_ids_than_are_read_are_refused_where_few_are_kept_too(served: Served) -> None:
    response = await served.complete([97] * ((1 << 18) + 1), truncate_prompt_tokens=1)
    assert response.status_code == 400
    assert "262144" in error_of(response)["message"]
    kept = await served.complete([97] * (1 << 18), truncate_prompt_tokens=1, max_tokens=1)
    assert kept.json()["usage"]["prompt_tokens"] == 1


async def test_a_long_list_of_ids_is_refused_by_its_length_before_anything_else(served: Served) -> None:
    response = await served.complete([-1] * 5000, max_tokens=1)
    assert response.status_code == 400
    ids = await served.complete([300] * 5000, max_tokens=1)
    assert error_of(ids)["code"] == "context_length_exceeded"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {"prompt": "x" * 200_000}, "prompt"),
        ("/v1/embeddings", {"model": "fake", "input": "x" * 200_000, "truncate_prompt_tokens": 1}, "input"),
        ("/v1/completions", {"model": "fake", "prompt": "\N{WOMAN}" * 50_000}, "prompt"),
        ("/v1/completions", {"model": "fake", "prompt": ["x"] * 1025}, "prompt"),
        ("/v1/chat/completions", chat_body(tools=[DESCRIBED]), "messages"),
        ("/v1/score", {"query": "x", "items": ["x"] * 1025, "labels": ["x"]}, "items"),
        ("/v1/score", {"query": "x" * 10_000, "items": ["x"] * 1000, "labels": ["x"]}, "items"),
        ("/v1/score", {"query": [1] * 10_000, "items": [[1]] * 1000, "labels": [[1]]}, "items"),
    ],
)
async def test_too_much_is_refused_before_it_is_tokenised(
    served: Served, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any], param: str
) -> None:
    monkeypatch.setattr(
        type(served.engine.tokenizer), "encode", lambda *args, **kwargs: pytest.fail("it was")
    )
    response = await served.http.post(path, json=body)
    monkeypatch.undo()
    assert response.status_code == 400
    assert error_of(response)["param"] == param


async def test_bad_words_are_tokenised_once_and_off_the_event_loop(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = type(served.engine.tokenizer)
    encode, loop = tokenizer.encode, threading.current_thread()
    words: list[str] = []

    def watched(self: Any, text: str, **options: Any) -> Any:
        assert threading.current_thread() is not loop
        words.append(text)
        return encode(self, text, **options)

    with monkeypatch.context() as patch:
        patch.setattr(tokenizer, "encode", watched)
        response = await served.complete(["a", "b", "c"], bad_words=["x", "y"], max_tokens=2)
    assert len(response.json()["choices"]) == 3
    assert sorted(words) == [" x", " y", "a", "b", "c", "x", "y"]


async def test_a_body_beyond_the_limit_names_it(served: Served) -> None:
    response = await served.http.post("/v1/completions", content=b" " * ((8 << 20) + 1))
    assert response.status_code == 413
    assert str(8 << 20) in error_of(response)["message"]


async def test_bodies_that_are_being_received_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slow senders hold what they sent: others with large bodies are told to come again, those with small
    ones are not kept out."""
    monkeypatch.setattr("app.state._BODIES", 2)
    begun = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1048576\r\n\r\n"
    small = {"model": "fake", "prompt": "x", "max_tokens": 1, "user": "u" * 60_000}
    body = {**small, "user": "u" * (_FREE + 140_000)}
    async with serving(max_body=1) as served, AsyncExitStack() as stack:
        slow = [await stack.enter_async_context(raw_client(served)) for _ in range(2)]
        for client in slow:
            client.writer.write(begun + b" " * ((1 << 20) - 100))
        await until(lambda: served.state._body_room._left == 2 * (_FREE + 100))
        assert (await served.post("completions", small)).status_code == 200
        refused = await served.post("completions", body)
        assert refused.status_code == 429
        assert refused.headers["retry-after"] == "1"
        assert "being received" in error_of(refused)["message"]
        assert served.engine.stats.rejected["bodies_full"] == 1
        await slow[0].hang_up()
        await until(lambda: served.state._body_room._left == (1 << 20) + _FREE + 100)
        assert (await served.post("completions", body)).status_code == 200
        slow[1].writer.write(b" " * 98 + b"{}")
        async with asyncio.timeout(HANGS_S):
            assert b" 400 " in await slow[1].reader.readline()
        assert served.state._body_room._left == 2 << 20


@pytest.mark.parametrize(
    "headers",
    [
        [("Content-Encoding", "gzip")],
        [("Content-Encoding", "identity, gzip")],
        [("Content-Encoding", "identity"), ("Content-Encoding", "gzip")],
    ],
)
async def test_a_compressed_body_is_refused(served: Served, headers: list[tuple[str, str]]) -> None:
    response = await served.http.post("/v1/completions", content=b"\x1f\x8b", headers=headers)
    assert response.status_code == 415
    assert "gzip" in error_of(response)["message"]
