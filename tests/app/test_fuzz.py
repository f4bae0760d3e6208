"""Whatever a client sends, the answer is one of the API's, and the server is as before.

`ops/fuzz` runs it for as long as one likes; every find becomes a test of its own.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.protocol import ChatRequest, CompletionRequest
from app.responses_wire import ResponsesRequest
from app.tokens_api import DetokenizeRequest, TokenizeRequest
from tests.app.harness import Served, become_quiet, error_of, server_tasks, serving
from tests.app.wire_strategies import JSON, bodies

statuses: Counter[int] = Counter()

fuzzed = settings(
    max_examples=max(300, settings().max_examples), deadline=None, suppress_health_check=list(HealthCheck)
)


@pytest.fixture(scope="module")
async def target() -> AsyncIterator[Served]:
    """With a context so short that no answer takes long."""
    async with serving(max_context=64, num_pages=4096) as server:
        known = server_tasks()
        yield server
        await become_quiet(server, known)
        # Both sides of the border are looked for.
        assert statuses[200]
        assert statuses[400]


async def check(target: Served, path: str, body: Any) -> None:
    response = await target.http.post(path, content=json.dumps(body).encode())
    statuses[response.status_code] += 1
    assert response.status_code < 500, response.text
    if response.status_code != 200:
        error_of(response)
    elif isinstance(body, dict) and body.get("stream"):
        assert b"data: " in response.content
        assert b"internal_error" not in response.content


@fuzzed
@given(body=bodies(ChatRequest))
async def test_chat(target: Served, body: dict[str, Any]) -> None:
    await check(target, "/v1/chat/completions", {**body, "model": "fake"})


@fuzzed
@given(body=bodies(CompletionRequest))
async def test_completions(target: Served, body: dict[str, Any]) -> None:
    await check(target, "/v1/completions", {**body, "model": "fake"})


@fuzzed
@given(body=bodies(ResponsesRequest))
async def test_responses(target: Served, body: dict[str, Any]) -> None:
    await check(target, "/v1/responses", {**body, "model": "fake"})


@fuzzed
@given(body=bodies(TokenizeRequest) | bodies(DetokenizeRequest), path=st.sampled_from(["", "de"]))
async def test_tokens(target: Served, body: dict[str, Any], path: str) -> None:
    await check(target, f"/{path}tokenize", {**body, "model": "fake"})


@fuzzed
@given(body=JSON | st.binary(max_size=40), path=st.sampled_from(["chat/completions", "completions"]))
async def test_anything(target: Served, body: Any, path: str) -> None:
    if isinstance(body, bytes):
        assert (await target.http.post(f"/v1/{path}", content=body)).status_code in (400, 404, 415)
    else:
        await check(target, f"/v1/{path}", body)
