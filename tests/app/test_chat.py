"""POST /v1/chat/completions: what is said on the wire, streamed and whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.app.harness import Served, chat_body, error_of, events
from tests.fakes import IM_END, hashed_tokens, say

PROMPT = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def joined(chunks: list[dict[str, Any]], index: int = 0) -> str:
    """A choice's text."""
    choices = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
    return "".join(choice["delta"].get("content", "") for choice in choices)


async def test_a_whole_answer(served: Served) -> None:
    served.runner.script = say("Hello!")
    body = (await served.chat()).json()
    assert body.pop("id").startswith("chatcmpl-")
    assert isinstance(body.pop("created"), int)
    assert body == {
        "object": "chat.completion",
        "model": "fake",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello!", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": 21,
            "completion_tokens": len("Hello!") + 1,
            "total_tokens": 28,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }


async def test_the_stream_has_the_form_of_openai(served: Served) -> None:
    """A16, A17, A18, A19, A20: names, null until the finish chunk, one of them a choice, roles first."""
    served.runner.script = say("one", "three")
    response = await served.chat(stream=True, n=2)
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    chunks = events(response.text)
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert all("usage" not in chunk for chunk in chunks)
    assert [chunk["choices"][0] for chunk in chunks[:2]] == [
        {"index": index, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
        for index in (0, 1)
    ]
    for index, text in enumerate(("one", "three")):
        choices = [c for chunk in chunks for c in chunk["choices"] if c["index"] == index][1:]
        *contents, finish = choices
        assert finish == {"index": index, "delta": {}, "finish_reason": "stop"}
        assert all(c["finish_reason"] is None for c in contents)
        assert all(list(c["delta"]) == ["content"] and c["delta"]["content"] for c in contents)
        assert "".join(c["delta"]["content"] for c in contents) == text


@pytest.mark.parametrize("fields", [{}, {"stop": "XX"}, {"max_tokens": 7}, {"stop": ["ne", "q"]}, {"n": 3}])
async def test_streamed_and_whole_answers_are_equal(served: Served, fields: dict[str, Any]) -> None:
    served.runner.script = say("done, and done", "ünï", "")
    whole = (await served.chat(**fields)).json()
    chunks = events((await served.chat(**fields, stream=True, stream_options={"include_usage": True})).text)
    for choice in whole["choices"]:
        index = choice["index"]
        assert joined(chunks, index) == choice["message"]["content"]
        (finish,) = [
            c for chunk in chunks for c in chunk["choices"] if c["index"] == index and c["finish_reason"]
        ]
        assert finish["finish_reason"] == choice["finish_reason"]
        assert finish.get("stop_reason") == choice.get("stop_reason")
    for count in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert chunks[-1]["usage"][count] == whole["usage"][count]


async def test_usage_is_told_when_asked_for(served: Served) -> None:
    """A15: the last chunk has it and no choices; before it, null."""
    served.runner.script = say("x" * 50)
    prompt = "y" * 1000
    chunks = events((await served.chat(prompt, stream=True, stream_options={"include_usage": True})).text)
    *others, last = chunks
    assert all(chunk["usage"] is None and chunk["choices"] for chunk in others)
    assert last["choices"] == []
    assert last["usage"] == {
        "prompt_tokens": 1019,
        "completion_tokens": 51,
        "total_tokens": 1070,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


async def test_usage_is_told_in_every_chunk_when_asked_for(served: Served) -> None:
    """A15: with chunked prefill the prompt counts in full from the first chunk on."""
    served.runner.script = say("x" * 50)
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = events((await served.chat("y" * 1000, stream=True, stream_options=options)).text)
    usages = [chunk["usage"] for chunk in chunks]
    assert {usage["prompt_tokens"] for usage in usages} == {1019}
    completion = [usage["completion_tokens"] for usage in usages]
    assert completion == sorted(completion)
    assert (completion[0], completion[-1]) == (0, 51)


async def test_the_cached_part_of_a_prompt_is_told(served: Served) -> None:
    """A34: never the whole prompt, for its last token has to run."""
    prompt = "z" * 45  # 64 tokens, a multiple of the page size
    first = (await served.chat(prompt, max_tokens=8, temperature=0)).json()
    second = (await served.chat(prompt, max_tokens=8, temperature=0)).json()
    assert first["usage"]["prompt_tokens"] == 64
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == 60
    assert second["choices"] == first["choices"]


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        [{"role": "user", "content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]}],
        [{"role": "user", "content": "hi", "name": "ann", "unknown": {"field": 1}}],
    ],
)
async def test_content_in_parts_is_the_same_prompt(served: Served, messages: list[Any]) -> None:
    """A31"""
    plain = (await served.chat(max_tokens=10, temperature=0)).json()
    parts = (
        await served.post("chat/completions", chat_body() | {"messages": messages, "max_tokens": 10})
    ).json()
    assert parts["choices"] == plain["choices"]
    expected = [ord(char) for char in PROMPT]
    assert plain["usage"]["prompt_tokens"] == len(expected) - len("<|im_start|>") * 2 - len("<|im_end|>") + 3


async def test_every_role_and_content_form_is_taken(served: Served) -> None:
    """A31: parts for every role; null or empty content beside tool calls."""
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    text = [{"type": "text", "text": "x"}]
    messages = [
        {"role": "system", "content": text},
        {"role": "developer", "content": "x"},
        {"role": "user", "content": text},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": text, "tool_call_id": "1"},
        {"role": "assistant", "content": [], "tool_calls": [call]},
        {"role": "tool", "content": "x", "tool_call_id": "1"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
    ]
    response = await served.post("chat/completions", chat_body() | {"messages": messages, "max_tokens": 1})
    assert response.status_code == 200


async def test_parts_of_every_role_are_the_same_prompt_as_their_text(served: Served) -> None:
    """A31"""
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}

    def conversation(content: Callable[[str], Any], nothing: Any) -> list[dict[str, Any]]:
        return [
            {"role": "system", "content": content("Be kind.")},
            {"role": "user", "content": content("hi")},
            {"role": "assistant", "content": nothing, "tool_calls": [call]},
            {"role": "tool", "content": content("sunny"), "tool_call_id": "1"},
            {"role": "system", "content": content("Now be brief.")},
        ]

    def parts(text: str) -> list[dict[str, str]]:
        return [{"type": "text", "text": half} for half in (text[:2], text[2:])]

    prompts = []
    for messages in (conversation(str, None), conversation(parts, []), conversation(parts, "")):
        body = chat_body(max_tokens=1) | {"messages": messages}
        assert (await served.post("chat/completions", body)).status_code == 200
        row = served.runner.batches[-1].samples[0]
        prompts.append(row.tokens[: row.num_prompt])
    assert prompts[0] == prompts[1] == prompts[2]
    assert prompts[0].count(IM_END) == 5


async def test_max_completion_tokens_wins(served: Served) -> None:
    """A27"""
    body = (await served.chat(max_tokens=9, max_completion_tokens=4)).json()
    assert body["usage"]["completion_tokens"] == 4
    assert body["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    "fields", [{}, {"max_tokens": None}, {"max_completion_tokens": None, "max_tokens": None}]
)
async def test_without_a_limit_the_answer_runs_to_the_end_of_the_context(
    served: Served, fields: dict[str, Any]
) -> None:
    """A27"""
    body = (await served.chat("w" * 4000, **fields)).json()
    assert body["usage"]["prompt_tokens"] == 4019
    assert body["usage"]["total_tokens"] == 4096
    assert body["choices"][0]["finish_reason"] == "length"


async def test_logprobs(served: Served) -> None:
    served.runner.script = say("hé")
    body = (await served.chat(logprobs=True, top_logprobs=2)).json()
    content = body["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in content] == ["h", "\\xc3", "\\xa9", "<|im_end|>"]
    assert [entry["bytes"] for entry in content] == [[104], [0xC3], [0xA9], list(b"<|im_end|>")]
    assert [top["token"] for top in content[0]["top_logprobs"]] == ["h", "A"]
    assert content[0]["logprob"] == content[0]["top_logprobs"][0]["logprob"] == -0.25
    assert body["usage"]["completion_tokens"] == len(content)


async def test_streamed_logprobs_are_the_same_and_in_no_empty_chunk(served: Served) -> None:
    """A12: tokens whose text is held back wait for it, or for the finish chunk."""
    served.runner.script = say("hé STO")
    fields = {"logprobs": True, "top_logprobs": 1, "stop": "STOP"}
    whole = (await served.chat(**fields)).json()["choices"][0]
    choices = [chunk["choices"][0] for chunk in events((await served.chat(**fields, stream=True)).text)]
    streamed = [entry for choice in choices for entry in choice.get("logprobs", {}).get("content", [])]
    assert streamed == whole["logprobs"]["content"]
    assert all(choice["delta"].get("content", "x") for choice in choices[1:])


async def test_logprobs_without_alternatives(served: Served) -> None:
    body = (await served.chat(logprobs=True, max_tokens=2)).json()
    assert [entry["top_logprobs"] for entry in body["choices"][0]["logprobs"]["content"]] == [[], []]


async def test_stop_strings(served: Served) -> None:
    """A08, A11"""
    served.runner.script = say("ABCDEFGHIJ")
    choice = (await served.chat(stop=["DEFGHIJ"])).json()["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("ABC", "stop")
    assert choice["stop_reason"] == "DEFGHIJ"
    chunks = events((await served.chat(stop="DEFGHIJ", stream=True)).text)
    assert joined(chunks) == "ABC"
    kept = (await served.chat(stop="DEF", include_stop_str_in_output=True)).json()["choices"][0]
    assert kept["message"]["content"] == "ABCDEF"


@pytest.mark.parametrize("fields", [{}, {"max_tokens": 11}])
async def test_what_a_stop_string_held_back_is_given_at_the_end(
    served: Served, fields: dict[str, Any]
) -> None:
    """A10"""
    served.runner.script = say("UNO DUE TRE")
    fields = {"stop": ["TRE\nAAAA"], **fields}
    assert (await served.chat(**fields)).json()["choices"][0]["message"]["content"] == "UNO DUE TRE"
    assert joined(events((await served.chat(**fields, stream=True)).text)) == "UNO DUE TRE"


async def test_no_half_characters_are_streamed(served: Served) -> None:
    """A13"""
    text = "🔥ďábelské 你好 👩‍👩‍👧"
    served.runner.script = say(text)
    response = await served.chat(stream=True)
    assert "\ufffd" not in response.text
    assert joined(events(response.text)) == text


async def test_stop_token_ids_and_ignore_eos(served: Served) -> None:
    served.runner.script = say("ab.cd")
    choice = (await served.chat(stop_token_ids=[ord(".")])).json()["choices"][0]
    assert (choice["message"]["content"], choice["stop_reason"]) == ("ab", ord("."))
    body = (await served.chat(ignore_eos=True, max_tokens=9)).json()
    assert body["usage"]["completion_tokens"] == 9
    assert body["choices"][0]["finish_reason"] == "length"
    body = (await served.chat(ignore_eos=True, max_tokens=7, skip_special_tokens=False)).json()
    assert body["choices"][0]["message"]["content"] == "ab.cd<|im_end|><|im_end|>"


async def test_sampling_fields_reach_the_sampler(served: Served) -> None:
    fields: dict[str, Any] = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "min_p": 0.1,
        "repetition_penalty": 1.5,
        "presence_penalty": -2,
        "frequency_penalty": 2,
        "logit_bias": {"5": -100, "7": 1.5},
        "seed": 42,
        "min_tokens": 3,
    }
    await served.chat(**fields, max_tokens=4)
    params = served.runner.batches[-1].samples[0].params
    expected = {**fields, "logit_bias": {5: -100.0, 7: 1.5}}
    assert {name: getattr(params, name) for name in expected} == expected


@pytest.mark.parametrize("top_k", [-1, 0, None])
async def test_defaults(served: Served, top_k: int | None) -> None:
    await served.chat(top_k=top_k, max_tokens=1, seed=None, temperature=None)
    params = served.runner.batches[-1].samples[0].params
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (1.0, 1.0, 0, 0.0)
    first_seed = params.seed
    await served.chat(max_tokens=1)
    assert served.runner.batches[-1].samples[0].params.seed != first_seed


async def test_cache_salt_keeps_prefixes_apart(served: Served) -> None:
    for salt, cached in (("a", 0), ("b", 0), ("a", 20), (None, 0)):
        usage = (await served.chat(cache_salt=salt, max_tokens=1)).json()["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == cached


async def test_fields_that_say_nothing_to_an_open_server_are_ignored(served: Served) -> None:
    """A32: what OpenAI's clients and LangChain send along."""
    foreign = {
        "user": "u",
        "metadata": {"a": "b"},
        "service_tier": "auto",
        "prompt_cache_key": "k",
        "safety_identifier": "s",
        "whatever": {"x": [1]},
    }
    neutral = {
        "store": False,
        "modalities": ["text"],
        "parallel_tool_calls": True,
        "best_of": 1,
        "echo": False,
        "tool_choice": "none",
        "response_format": {"type": "text"},
        "functions": [],
        "priority": 0,
        "length_penalty": 1.0,
        "spaces_between_special_tokens": True,
    }
    absent = ["audio", "logit_bias", "reasoning_effort", "stop", "stream_options", "tools", "top_logprobs"]
    response = await served.chat(**foreign, **neutral, **dict.fromkeys(absent), max_tokens=1)
    assert response.status_code == 200, response.text


async def test_the_prompt_is_rendered_by_the_models_template(served: Served) -> None:
    """The fake model's text depends on every token of the prompt."""
    tokenizer = served.engine.tokenizer
    prompt = tokenizer.encode(PROMPT, add_special=False, parse_special=True)
    expected = bytes(hashed_tokens(prompt, 10)).decode()
    assert (await served.chat(max_tokens=10)).json()["choices"][0]["message"]["content"] == expected


async def test_the_final_message_can_be_continued(served: Served) -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "The answer is"}]
    for fields, end in (
        ({"continue_final_message": True}, "assistant\nThe answer is"),
        ({"add_generation_prompt": False}, "assistant\nThe answer is<|im_end|>\n"),
    ):
        response = await served.post(
            "chat/completions", chat_body(max_tokens=10) | {"messages": messages} | fields
        )
        text = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>" + end
        prompt = served.engine.tokenizer.encode(text, add_special=False, parse_special=True)
        assert (
            response.json()["choices"][0]["message"]["content"] == bytes(hashed_tokens(prompt, 10)).decode()
        )


async def test_special_tokens_in_a_message_are_text(served: Served) -> None:
    body = (await served.chat("<|im_end|>", max_tokens=1)).json()
    assert body["usage"]["prompt_tokens"] == 19 + len("<|im_end|>")


async def test_top_logprobs_need_logprobs(served: Served) -> None:
    assert error_of(await served.chat(top_logprobs=2))["param"] == "top_logprobs"
