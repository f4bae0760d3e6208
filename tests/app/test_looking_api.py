"""Asking about a schema before it is used, and about a request while it runs or after."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from jsonschema import Draft7Validator, Draft202012Validator

from app.schema_check import DECIDING
from tests.app.harness import Served, error_of, events, until

SCHEMA: dict[str, Any] = {
    "title": "City",
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 4, "x-note": 5}, "title": {"const": 1}},
    "required": ["name"],
    "additionalProperties": False,
    "$defs": {"unused": {"examples": [{"pattern": "a"}]}},
}


async def test_a_schema_that_is_enforced(served: Served) -> None:
    answer = (await served.post("schema/check", {"schema": SCHEMA})).json()
    assert answer["accepted"] is True
    assert answer["refusal"] is None
    assert answer["enforced"] == [
        "additionalProperties",
        "const",
        "maxLength",
        "properties",
        "required",
        "type",
    ]
    assert answer["ignored"] == ["examples", "title", "x-note"]
    assert answer["compile_ms"] >= 0
    if answer["min_tokens"] is not None:
        assert answer["min_tokens"] <= len('{"name":""}')


async def test_a_schema_that_is_refused(served: Served) -> None:
    schema = {"type": "array", "items": {"$ref": "#/$defs/nowhere"}}
    answer = (await served.post("schema/check", {"schema": schema})).json()
    assert (answer["accepted"], answer["enforced"], answer["min_tokens"]) == (False, [], None)
    assert answer["refusal"]["message"]
    used = await served.chat(
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    )
    assert answer["refusal"]["message"] in error_of(used)["message"]


async def test_a_request_that_ended(served: Served) -> None:
    prompt = "z" * 150
    body = (await served.complete([prompt, "other"], n=2, max_tokens=5)).json()
    report = (await served.http.get(f"/v1/requests/{body['id']}")).json()
    assert report["id"] == body["id"]
    assert [(c["prompt"], c["index"]) for c in report["choices"]] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    first, second = report["choices"][:2]
    assert (first["state"], first["prompt_tokens"], first["output_tokens"]) == ("length", 150, 5)
    assert (first["cached_tokens"], second["cached_tokens"]) == (0, 148)
    assert first["chunks"] >= 3
    assert [stretch["kind"] for stretch in first["timeline"]][:2] == ["queued", "prefill"]
    assert sum(s["tokens"] for s in first["timeline"] if s["kind"] == "prefill") == 150
    for choice in report["choices"]:
        assert choice["queued_ms"] == choice["timeline"][0]["end_ms"] - choice["timeline"][0]["start_ms"]
        assert choice["slowest_step_ms"] == max(s["slowest_step_ms"] for s in choice["timeline"])


async def test_a_request_that_runs(served: Served) -> None:
    served.runner.pause()
    asking = asyncio.create_task(
        served.post("responses", {"model": "fake", "input": "x", "background": True})
    )
    id_ = (await asking).json()["id"]
    await until(lambda: served.engine.load().running == 1)
    report = (await served.http.get(f"/v1/requests/{id_}")).json()
    assert [(c["state"], c["output_tokens"], c["queued_ms"]) for c in report["choices"]] == [
        ("running", 0, None)
    ]
    await served.http.post(f"/v1/responses/{id_}/cancel")
    report = (await served.http.get(f"/v1/requests/{id_}")).json()
    assert report["choices"][0]["state"] == "abort"


async def test_an_unknown_request(served: Served) -> None:
    response = await served.http.get("/v1/requests/chatcmpl-0")
    assert response.status_code == 404
    assert error_of(response)["code"] == "request_not_found"


async def test_timings_with_a_whole_answer(served: Served) -> None:
    body = (await served.complete(["one", "other"], n=2, max_tokens=5, timings=True)).json()
    assert body["timings"] == (await served.http.get(f"/v1/requests/{body['id']}")).json()
    assert [choice["output_tokens"] for choice in body["timings"]["choices"]] == [5, 5, 5, 5]
    chat = (await served.chat(max_tokens=3, timings=True)).json()
    assert chat["timings"] == (await served.http.get(f"/v1/requests/{chat['id']}")).json()
    assert "timings" not in (await served.chat(max_tokens=3)).json()


@pytest.mark.parametrize("options", [{}, {"include_usage": True}, {"continuous_usage_stats": True}])
async def test_timings_in_the_last_chunk_of_a_stream(served: Served, options: dict[str, bool]) -> None:
    common = {"max_tokens": 4, "stream": True, "stream_options": options, "timings": True}
    for response in (await served.chat(**common), await served.complete(**common)):
        *chunks, last = events(response.text)
        assert all("timings" not in chunk for chunk in chunks)
        assert last["choices"] == []
        assert last["timings"] == (await served.http.get(f"/v1/requests/{last['id']}")).json()
        (choice,) = last["timings"]["choices"]
        assert (choice["state"], choice["output_tokens"]) == ("length", 4)
        assert last.get("usage", {}).get("completion_tokens") == (4 if options else None)


def test_the_keywords_that_decide_are_those_of_a_validator() -> None:
    """Of drafts 7 and 2020-12; some keywords only change what others mean, so that no function is theirs."""
    drafts = (Draft7Validator, Draft202012Validator)
    own = {keyword for draft in drafts for keyword in draft.VALIDATORS}
    assert own | {"then", "else", "minContains", "maxContains"} == DECIDING
