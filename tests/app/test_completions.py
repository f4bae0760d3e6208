"""POST /v1/completions: prompts in every form, and what is said on the wire."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.app.harness import Served, error_of, events
from tests.fakes import IM_END, hashed_tokens, say


def expected(prompt: list[int] | str, count: int = 16) -> str:
    """The fake model's text after a prompt."""
    return bytes(hashed_tokens(prompt.encode() if isinstance(prompt, str) else prompt, count)).decode()


async def test_a_whole_completion(served: Served) -> None:
    body = (await served.complete("abc")).json()
    assert body.pop("id").startswith("cmpl-")
    assert isinstance(body.pop("created"), int)
    assert body == {
        "object": "text_completion",
        "model": "fake",
        "choices": [{"index": 0, "text": expected("abc"), "logprobs": None, "finish_reason": "length"}],
        "usage": {
            "prompt_tokens": 3,
            "completion_tokens": 16,
            "total_tokens": 19,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("one", ["one"]),
        (["one", "two", "three"], ["one", "two", "three"]),
        ([104, 105], [[104, 105]]),
        ([[104, 105], [7], [106, 0, 255]], [[104, 105], [7], [106, 0, 255]]),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_every_form_of_prompt(served: Served, prompt: Any, prompts: list[Any], *, stream: bool) -> None:
    response = await served.complete(prompt, stream=stream, max_tokens=9, n=2)
    texts = [""] * (2 * len(prompts))
    bodies = events(response.text) if stream else [response.json()]
    for body in bodies:
        assert body["object"] == "text_completion"
        for choice in body["choices"]:
            texts[choice["index"]] += choice["text"]
    assert texts == [expected(one, 9) for one in prompts for _ in range(2)]


async def test_usage_adds_up_over_prompts(served: Served) -> None:
    options = {"include_usage": True}
    chunks = events(
        (await served.complete(["aa", "bbbb"], n=2, max_tokens=3, stream=True, stream_options=options)).text
    )
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["prompt_tokens"] == 6
    assert chunks[-1]["usage"]["completion_tokens"] == 12
    finishes = [c["index"] for chunk in chunks for c in chunk["choices"] if c["finish_reason"]]
    assert sorted(finishes) == [0, 1, 2, 3]


async def test_a_stream_ends_with_one_finish_chunk_a_choice(served: Served) -> None:
    """A16, A18"""
    served.runner.script = say("hello", "bye")
    chunks = events((await served.complete(n=2, stream=True)).text)
    for index, text in enumerate(("hello", "bye")):
        *contents, finish = [c for chunk in chunks for c in chunk["choices"] if c["index"] == index]
        assert "".join(c["text"] for c in contents) == text
        assert all(c["text"] and c["finish_reason"] is None for c in contents)
        assert finish == {"index": index, "text": "", "logprobs": None, "finish_reason": "stop"}


async def test_logprobs(served: Served) -> None:
    served.runner.script = say("hé!")
    body = (await served.complete(logprobs=2)).json()
    logprobs = body["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["h", "\\xc3", "\\xa9", "!", "<|im_end|>"]
    assert logprobs["token_logprobs"] == [-0.25] * 5
    assert logprobs["text_offset"] == [0, 1, 1, 2, 3]
    assert logprobs["top_logprobs"][0] == {"h": -0.25, "A": -2.0 - 65 / 64}
    assert all(max(top.values()) == -0.25 for top in logprobs["top_logprobs"])


async def test_streamed_logprobs_are_the_same(served: Served) -> None:
    served.runner.script = say("hé, you")
    whole = (await served.complete(logprobs=1)).json()["choices"][0]["logprobs"]
    streamed: dict[str, list[Any]] = {name: [] for name in whole}
    for chunk in events((await served.complete(logprobs=1, stream=True)).text):
        for name, values in (chunk["choices"][0]["logprobs"] or {}).items():
            streamed[name] += values
    assert streamed == whole


async def test_the_sampled_token_is_always_among_the_alternatives(served: Served) -> None:
    logprobs = (await served.complete(logprobs=0, max_tokens=1)).json()["choices"][0]["logprobs"]
    assert list(logprobs["top_logprobs"][0]) == logprobs["tokens"]


async def test_infinite_logprobs_are_written_as_numbers(served: Served) -> None:
    """A21"""
    response = await served.complete(logprobs=20, top_k=1, max_tokens=3)
    assert response.status_code == 200
    json.loads(response.text, parse_constant=pytest.fail)


async def test_a_prompt_may_end_inside_a_character(served: Served) -> None:
    """A14: the character appears once, and nothing of the prompt."""
    data = "🔥".encode()
    served.runner.script = lambda row: [*data[3:], *b" ok", IM_END][row.position - row.num_prompt]
    prompt = [*b"Hello world ", *data[:3]]
    texts = [
        c["text"]
        for chunk in events((await served.complete(prompt, stream=True)).text)
        for c in chunk["choices"]
    ]
    assert "".join(texts) == "🔥 ok"


async def test_special_tokens_in_a_prompt_are_special(served: Served) -> None:
    body = (await served.complete("<|im_start|>user", max_tokens=1)).json()
    assert body["usage"]["prompt_tokens"] == 1 + len("user")


async def test_without_a_limit_there_are_16_tokens_or_what_the_context_leaves(served: Served) -> None:
    for length, count in ((10, 16), (4090, 6)):
        body = (await served.complete("p" * length, max_tokens=None)).json()
        assert body["usage"]["completion_tokens"] == count


@pytest.mark.parametrize("prompt", ["", [], [""], [[]], ["a", ""], [[1], []], None])
async def test_an_empty_prompt_is_refused(served: Served, prompt: Any) -> None:
    """A25"""
    response = await served.complete(prompt)
    assert response.status_code == 400
    assert error_of(response)["param"] == "prompt"


@pytest.mark.parametrize(
    "prompt",
    [
        ["a", 1],
        [1, "a"],
        [1, [2]],
        [[1], "a"],
        ["a", [1]],
        [[1], 2],
        [-1],
        [272],
        [[1], [272]],
        [1.5],
        [True],
        {},
    ],
)
async def test_a_prompt_of_the_wrong_kind_is_refused(served: Served, prompt: Any) -> None:
    response = await served.complete(prompt)
    assert response.status_code == 400
    assert error_of(response)["param"].startswith("prompt")


async def test_too_many_prompts_are_refused(served: Served) -> None:
    response = await served.complete(["a"] * 600, n=2)
    assert response.status_code == 400
    assert error_of(response)["param"] == "prompt"


async def test_one_refused_prompt_refuses_all(served: Served) -> None:
    """Nothing of the others is left in the engine."""
    started = served.engine.stats.started
    response = await served.complete(["fine", "x" * 5000], max_tokens=5)
    assert response.status_code == 400
    assert error_of(response)["code"] == "context_length_exceeded"
    stats = served.engine.stats
    assert stats.finished["abort"] >= stats.started - started
