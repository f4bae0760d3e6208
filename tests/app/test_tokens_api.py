"""Tokenising by request, and the headers of every answer."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import pytest

from tests.app.harness import Served, error_of, serving
from tests.fakes import CHAT_TEMPLATE


async def test_a_text_has_the_tokens_it_is_completed_with(served: Served) -> None:
    body = {"prompt": "hé<|im_end|>", "return_token_strs": True}
    answer = (await served.http.post("/tokenize", json=body)).json()
    assert answer == {
        "count": 4,
        "max_model_len": 4096,
        "tokens": [104, 0xC3, 0xA9, 258],
        "token_strs": ["h", "\\xc3", "\\xa9", "<|im_end|>"],
    }
    text = (await served.http.post("/detokenize", json={"tokens": answer["tokens"]})).json()
    assert text == {"prompt": "hé<|im_end|>"}


async def test_a_conversation_has_the_tokens_it_is_answered_with(served: Served) -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    for fields in ({}, {"tools": [tool]}, {"add_generation_prompt": False}):
        messages = [{"role": "user", "content": "hi"}]
        counted = (await served.http.post("/tokenize", json={"messages": messages, **fields})).json()
        answered = (await served.chat(return_token_ids=True, max_tokens=1, **fields)).json()
        assert counted["tokens"] == answered["prompt_token_ids"]
        assert counted["count"] == answered["usage"]["prompt_tokens"]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "b"}]}, "prompt"),
        ("/tokenize", {"prompt": "a", "model": "other"}, "model"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/detokenize", {"tokens": [272]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("/detokenize", {}, "tokens"),
    ],
)
async def test_what_is_wrong_is_refused_by_name(
    served: Served, path: str, body: dict[str, Any], param: str
) -> None:
    response = await served.http.post(path, json=body)
    assert response.status_code in (400, 404)
    assert error_of(response)["param"] == param


async def test_what_the_server_tells_of_itself(served: Served) -> None:
    assert (await served.http.get("/version")).json() == {"version": version("radish-serve")}
    info = (await served.http.get("/tokenizer_info")).json()
    assert info["eos_token_ids"] == [258]
    assert info["bos_token_id"] == info["special_tokens"]["<|endoftext|>"] == 256
    assert info["chat_template"] == CHAT_TEMPLATE
    named = [info[f"{role}_token"] for role in ("bos", "eos", "unk", "pad")]
    assert named == ["<|endoftext|>", "<|im_end|>", None, None]


async def test_every_answer_says_how_long_it_took(served: Served) -> None:
    for response in (
        await served.chat(max_tokens=1),
        await served.chat(n=0),
        await served.http.get("/nowhere"),
    ):
        assert int(response.headers["openai-processing-ms"]) >= 0


async def test_other_origins_are_let_in_only_when_told(served: Served) -> None:
    """A49: a preflight has no key to send, so it needs none."""
    asking = {"origin": "https://a.example", "access-control-request-method": "POST"}
    assert "access-control-allow-origin" not in (await served.http.get("/health", headers=asking)).headers
    key = {"authorization": "Bearer a-key-of-the-test"}
    origins = ("https://a.example", "https://b.example")
    async with serving(cors_origins=origins, api_key=("a-key-of-the-test",)) as open_:
        preflight = await open_.http.options("/v1/chat/completions", headers=asking)
        assert preflight.status_code == 200
        assert preflight.headers["access-control-allow-origin"] == "https://a.example"
        answer = await open_.http.get("/v1/models", headers={"origin": "https://b.example"} | key)
        assert answer.headers["access-control-allow-origin"] == "https://b.example"
        assert "x-request-id" in answer.headers["access-control-expose-headers"]
        keyless = await open_.http.get("/v1/models", headers={"origin": "https://b.example"})
        assert keyless.status_code == 401
        assert keyless.headers["access-control-allow-origin"] == "https://b.example"
        stranger = await open_.http.get("/v1/models", headers={"origin": "https://c.example"})
        assert "access-control-allow-origin" not in stranger.headers


async def test_when_to_come_back_is_told_in_milliseconds_too() -> None:
    async with serving(max_waiting=1) as small:
        response = await small.chat(n=2)
        assert response.status_code == 429
        seconds, milliseconds = (response.headers[name] for name in ("retry-after", "retry-after-ms"))
        assert 0 < int(milliseconds) <= int(seconds) * 1000 < int(milliseconds) + 1000
