"""What is refused, and how: always a JSON error naming the field, never a 5xx, never a stream."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.app.harness import Served, chat_body, error_of, events, raw_client, serving

BROKEN_CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "["}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        # A26
        ({"logit_bias": {"272": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"abc": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 1e30}}, "logit_bias"),
        ({"logit_bias": {"1": 101}}, "logit_bias"),
        ({"logit_bias": {str(i): 1 for i in range(2000)}}, "logit_bias"),
        ({"logit_bias": {"9" * 30: 1}}, "logit_bias"),
        ({"logit_bias": {"1": -100.5}}, "logit_bias"),
        ({"logit_bias": [1]}, "logit_bias"),
        # A30
        ({"top_logprobs": "5", "logprobs": True}, "top_logprobs"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        ({"n": "2"}, "n"),
        ({"n": 0}, "n"),
        ({"n": 1.5}, "n"),
        ({"n": True}, "n"),
        ({"n": 10**30}, "n"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"frequency_penalty": -3}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"seed": 2**64}, "seed"),
        ({"seed": "x"}, "seed"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -5}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a", ""]}, "stop[1]"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stop": 5}, "stop"),
        ({"stop_token_ids": [272]}, "stop_token_ids"),
        ({"stop_token_ids": ["a"]}, "stop_token_ids[0]"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"allowed_token_ids": [272]}, "allowed_token_ids"),
        ({"allowed_token_ids": [1], "guided_regex": "a"}, "allowed_token_ids"),
        ({"bad_words": [""]}, "bad_words[0]"),
        ({"bad_words": ["x"], "response_format": {"type": "json_object"}}, "bad_words"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": 1}, "stream": True}, "stream_options.include_usage"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"chat_template_kwargs": {"tools": 1}}, "chat_template_kwargs.tools"),
        ({"chat_template_kwargs": {"messages": [], "tools": 1}}, "chat_template_kwargs.messages"),
        ({"chat_template_kwargs": [1]}, "chat_template_kwargs"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "add_generation_prompt"),
        ({"model": 5}, "model"),
        # Messages
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content[0]"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages[0].content[0].type",
        ),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        (
            {
                "messages": [
                    {
                        "role": "assistant",
                        "tool_calls": [
                            {"id": "1", "type": "function", "function": {"name": "f", "arguments": "["}}
                        ],
                    }
                ]
            },
            "messages[0].tool_calls[0].function.arguments",
        ),
        # Tools
        ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "tools[0].type"),
        ({"tools": [TOOL, TOOL]}, "tools[1].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "sometimes", "tools": [TOOL]}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "g"}}, "tools": [TOOL]}, "tool_choice"),
        ({"tools": [TOOL], "response_format": {"type": "json_object"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": "required", "guided_regex": "a"}, "tool_choice"),
        # Structured output
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format.json_schema.schema",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a b", "schema": {}}}},
            "response_format.json_schema.name",
        ),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs"),
        ({"structured_outputs": {"regex": 5}}, "structured_outputs.regex"),
        ({"structured_outputs": {"json_object": False}}, "structured_outputs.json_object"),
        ({"structured_outputs": {"regexp": "a"}}, "structured_outputs.regexp"),
    ],
)
async def test_a_wrong_value_is_refused_by_name(served: Served, fields: dict[str, Any], param: str) -> None:
    """A07, A25, A26, A30: the same with and without streaming."""
    for stream in ({}, {"stream": True}):
        response = await served.post("chat/completions", chat_body() | stream | fields)
        assert response.status_code == 400, response.text
        assert error_of(response)["param"] == param
        assert error_of(response)["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("audio", {"voice": "x", "format": "wav"}),
        ("modalities", ["text", "audio"]),
        ("functions", [{"name": "f"}]),
        ("function_call", "auto"),
        ("web_search_options", {}),
        ("prediction", {"type": "content", "content": "x"}),
        ("reasoning_effort", "high"),
        ("verbosity", "low"),
        ("store", True),
        ("best_of", 2),
        ("best_of", True),
        ("echo", True),
        ("add_special_tokens", True),
        ("use_beam_search", True),
        ("length_penalty", 0.5),
        ("logits_processors", ["x"]),
        ("spaces_between_special_tokens", False),
        ("chat_template", "{{ messages }}"),
        ("documents", [{}]),
        ("kv_transfer_params", {}),
    ],
)
async def test_what_is_known_and_not_supported_is_refused_by_name(
    served: Served, name: str, value: Any
) -> None:
    response = await served.chat(**{name: value})
    assert response.status_code == 400
    error = error_of(response)
    assert (error["param"], error["code"]) == (name, "unsupported_parameter")
    assert name in error["message"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("suffix", "x"),
        ("best_of", 3),
        ("prompt_embeds", "x"),
        ("logprobs", True),
        ("logprobs", 21),
        ("max_tokens", -1),
        ("prompt_logprobs", 21),
        ("prompt_logprobs", -1),
    ],
)
async def test_completions_refuse_by_name_too(served: Served, name: str, value: Any) -> None:
    response = await served.complete(**{name: value})
    assert response.status_code == 400
    assert error_of(response)["param"] == name


@pytest.mark.parametrize("literal", ["NaN", "Infinity", "-Infinity", "1e999"])
@pytest.mark.parametrize("field", ["temperature", "top_p", "presence_penalty"])
async def test_what_is_no_number_is_refused_by_name(served: Served, field: str, literal: str) -> None:
    """A30"""
    body = json.dumps(chat_body())[:-1] + f', "{field}": {literal}}}'
    response = await served.http.post(
        "/v1/chat/completions", content=body, headers={"content-type": "application/json"}
    )
    assert response.status_code == 400
    assert error_of(response)["param"] == field


async def test_the_widest_biases_are_taken_and_what_is_no_number_is_not(served: Served) -> None:
    """A26"""
    biases = {"65": 100, "66": -100}
    assert (await served.chat(logit_bias=biases, max_tokens=1)).status_code == 200
    assert served.runner.batches[-1].samples[0].params.logit_bias == {65: 100, 66: -100}
    body = json.dumps(chat_body())[:-1] + ', "logit_bias": {"65": NaN}}'
    response = await served.http.post("/v1/chat/completions", content=body)
    assert (response.status_code, error_of(response)["param"]) == (400, "logit_bias.65")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages[0].content"),
        ({"messages": [{"role": "\ud800", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": "x", "name": "a\udfff"}]}, "messages[0].name"),
        ({"model": "\ud800"}, "model"),
        ({"stop": ["\udc00"]}, "stop[0]"),
        ({"unknown": "\ud800"}, "unknown"),
        ({"guided_regex": "\ud800"}, "guided_regex"),
    ],
)
async def test_half_a_surrogate_pair_is_refused_by_name(
    served: Served, body: dict[str, Any], param: str
) -> None:
    """A29: and the answer is valid UTF-8."""
    response = await served.http.post(
        "/v1/chat/completions",
        content=json.dumps(chat_body() | body).encode(),
        headers={"content-type": "application/json"},
    )
    assert response.status_code == 400
    assert error_of(response)["param"] == param


async def test_bytes_that_are_no_text_are_refused(served: Served) -> None:
    """A29"""
    body = json.dumps(chat_body("X")).encode().replace(b"X", b"\xff\xfe")
    response = await served.http.post("/v1/chat/completions", content=body)
    assert response.status_code == 400
    assert error_of(response)["param"] == "messages[0].content"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"nonsense",
        b"[]",
        b'"text"',
        b"null",
        b"5",
        b'{"model":"fake"} {}',
        b'{"model":"fake","model":"fake","messages":[{"role":"user","content":"x"}]}',
        b'{"model":"fake","messages":[{"role":"user","content":"x","content":"y"}]}',
        b"{'model': 'fake'}",
        b"[" * 100_000,
        b'{"unknown":' * 100_000,
        b'{"unknown":' + b"[" * 200 + b"]" * 200 + b',"model":"fake"}',
        b'{"model":"fake"',
        b"\x00\x01\x02",
        b"\xef\xbb\xbf{}",
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_what_is_no_json_object_is_refused(served: Served, path: str, body: bytes) -> None:
    """A32"""
    response = await served.http.post(path, content=body, headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert error_of(response)["type"] == "invalid_request_error"


async def test_a_missing_field_is_named(served: Served) -> None:
    for body, param in (({"messages": chat_body()["messages"]}, "model"), ({"model": "fake"}, "messages")):
        response = await served.post("chat/completions", body)
        assert response.status_code == 400
        assert error_of(response)["param"] == param
    response = await served.post("completions", {"model": "fake"})
    assert error_of(response)["param"] == "prompt"


@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "text/plain"},
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": "multipart/form-data; boundary=x"},
        {"content-type": "application/json", "content-encoding": "gzip"},
    ],
)
async def test_other_media_types_are_refused(served: Served, headers: dict[str, str]) -> None:
    """A32"""
    body = json.dumps(chat_body()).encode()
    response = await served.http.post("/v1/chat/completions", content=body, headers=headers)
    assert response.status_code == 415
    error_of(response)


@pytest.mark.parametrize("content_type", ["application/json; charset=utf-8", "Application/JSON", None])
async def test_json_by_any_name_is_taken(served: Served, content_type: str | None) -> None:
    body = json.dumps(chat_body(max_tokens=1)).encode()
    headers = {"content-type": content_type} if content_type else {}
    response = await served.http.post("/v1/chat/completions", content=body, headers=headers)
    assert response.status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/chat/completions", 405),
        ("PUT", "/v1/completions", 405),
        ("DELETE", "/v1/models", 405),
        ("POST", "/health", 405),
        ("GET", "/nothing", 404),
        ("GET", "/v2/models", 404),
        ("POST", "/v1/chat/completions/", 404),
        ("POST", "/v1/unknown", 404),
        ("GET", "/%ff%fe", 404),
        ("GET", "/v1/models/%ed%a0%80", 404),
    ],
)
async def test_unknown_routes_and_methods_have_the_error_shape(
    served: Served, method: str, path: str, status: int
) -> None:
    """A32"""
    response = await served.http.request(method, path)
    assert response.status_code == status
    error_of(response)
    assert status != 405 or response.headers["allow"]


async def test_an_unknown_model_is_not_found(served: Served) -> None:
    """A32"""
    for response in (
        await served.post("chat/completions", chat_body() | {"model": "gpt"}),
        await served.post("completions", {"model": "gpt", "prompt": "x"}),
        await served.http.get("/v1/models/gpt"),
    ):
        assert response.status_code == 404
        error = error_of(response)
        assert (error["code"], error["param"]) == ("model_not_found", "model")
        assert "gpt" in error["message"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_context_overflow_tells_the_numbers(served: Served, *, stream: bool) -> None:
    """A28"""
    response = await served.chat("x" * 4000, max_tokens=100, stream=stream)
    assert response.status_code == 400
    error = error_of(response)
    assert (error["code"], error["param"]) == ("context_length_exceeded", "max_tokens")
    assert all(number in error["message"] for number in ("4096", "4019", "100"))
    response = await served.chat("x" * 4500, stream=stream)
    assert (error_of(response)["code"], error_of(response)["param"]) == (
        "context_length_exceeded",
        "messages",
    )
    assert all(number in error_of(response)["message"] for number in ("4096", "4519"))


async def test_a_hopelessly_long_prompt_is_refused_before_it_is_tokenised(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A45"""

    def fail(*args: Any, **kwargs: Any) -> list[int]:
        pytest.fail("it was tokenised")

    monkeypatch.setattr(type(served.engine.tokenizer), "encode", fail)
    for response in (await served.chat("x" * 1_000_000), await served.complete("x " * 500_000)):
        assert response.status_code == 400
        assert error_of(response)["code"] == "context_length_exceeded"
    monkeypatch.undo()


@pytest.mark.parametrize("size", [(1 << 20) + 1, 3 << 20])
@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_beyond_the_limit_is_refused(size: int, *, chunked: bool) -> None:
    """A45: whether or not its length is announced, and the client gets to see why."""

    async def pieces() -> Any:
        for _ in range(0, size, 1 << 16):
            yield b"x" * (1 << 16)
        yield b"x"

    async with serving(max_body=1) as server:
        response = await server.http.post("/v1/completions", content=pieces() if chunked else b"x" * size)
        assert response.status_code == 413
        assert error_of(response)["code"] == "request_too_large"
        assert (await server.complete(max_tokens=1)).status_code == 200


async def test_an_announced_body_far_beyond_the_limit_is_not_waited_for(served: Served) -> None:
    async with raw_client(served) as client:
        client.writer.write(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 999999999999\r\n\r\n"
        )
        answer = await client.reader.read()
    assert b" 413 " in answer.split(b"\r\n")[0]
    assert b"request_too_large" in answer


async def test_stream_options_need_a_stream(served: Served) -> None:
    response = await served.chat(stream_options={"include_usage": True})
    assert response.status_code == 400
    assert error_of(response)["param"] == "stream_options"


async def test_structured_outputs_without_nulls_are_what_counts(served: Served) -> None:
    response = await served.chat(structured_outputs={"regex": "ab", "json": None, "choice": None})
    assert response.json()["choices"][0]["message"]["content"] == "ab"


@pytest.mark.parametrize(
    ("sent", "echoed"),
    [("abc-123_x.Y:z", True), ("x" * 129, False), ("a b", False), ("é", False), ("", False)],
)
async def test_request_ids_are_echoed_or_made(served: Served, sent: str, *, echoed: bool) -> None:
    response = await served.http.get("/health", headers={b"x-request-id": sent.encode()})
    assert (response.headers["x-request-id"] == sent) is echoed
    assert response.headers["x-request-id"]
    response = await served.chat(max_tokens=1, stream=True)
    assert response.headers["x-request-id"]
    assert events(response.text)
