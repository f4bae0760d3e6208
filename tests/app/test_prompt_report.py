"""Echo, log-probabilities of prompts, token ids: what an answer tells of its prompt."""

from __future__ import annotations

from typing import Any

import pytest

from tests.app.harness import Served, error_of, events, serving
from tests.fakes import _chain, hashed_tokens, say


def prompt_values(ids: list[int]) -> list[float]:
    """The fake model's log-probabilities of all tokens but the first."""
    state, values = 0, []
    for token_id in ids[:-1]:
        state = _chain(state, token_id)
        values.append(-(state % 1000) / 64)
    return values


async def test_echo_with_logprobs_counts_the_prompt(served: Served) -> None:
    """A22, A24: the same twice, cold and with every page cached, over several chunks and pages."""
    ids = list(b"a prompt longer than three pages " * 5)
    answers = [
        (await served.complete([ids], echo=True, logprobs=1, max_tokens=1, temperature=0)).json()
        for _ in range(3)
    ]
    choice = answers[0]["choices"][0]
    logprobs = choice["logprobs"]
    assert {len(values) for values in logprobs.values()} == {len(ids) + 1}
    assert logprobs["token_logprobs"][0] is None
    assert logprobs["top_logprobs"][0] is None
    assert logprobs["token_logprobs"][1:] == [*prompt_values(ids), -0.25]
    assert choice["text"] == bytes([*ids, *hashed_tokens(ids, 1)]).decode()
    assert logprobs["text_offset"] == list(range(len(ids) + 1))
    assert "".join(logprobs["tokens"]) == choice["text"]
    assert answers[1]["choices"] == answers[2]["choices"] == answers[0]["choices"]
    assert answers[2]["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


async def test_a_prompt_that_was_measured_is_cached_for_others(served: Served) -> None:
    ids = list(b"measured and shared afterwards")
    await served.complete([ids], echo=True, logprobs=0, max_tokens=0)
    usage = (await served.complete([ids], max_tokens=1)).json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == 28


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompt", ["one", ["one", "<|im_start|>two, é"], [[104], [105, 106]]])
async def test_no_tokens_at_all_gives_the_prompt_only(served: Served, prompt: Any, *, stream: bool) -> None:
    """A23"""
    options = {"stream_options": {"include_usage": True}} if stream else {}
    response = await served.complete(prompt, echo=True, max_tokens=0, logprobs=1, stream=stream, **options)
    assert response.status_code == 200, response.text
    bodies = events(response.text) if stream else [response.json()]
    texts: dict[int, str] = {}
    reasons: dict[int, str] = {}
    for body in bodies:
        for choice in body["choices"]:
            texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
            reasons |= {choice["index"]: choice["finish_reason"]} if choice["finish_reason"] else {}
    prompts = [prompt] if isinstance(prompt, str) else prompt
    assert list(texts.values()) == [p if isinstance(p, str) else bytes(p).decode() for p in prompts]
    assert reasons == dict.fromkeys(texts, "length")
    assert bodies[-1]["usage"]["completion_tokens"] == 0


async def test_offsets_and_streams_of_an_echo_agree(served: Served) -> None:
    served.runner.script = say("hé, you")
    fields = {"echo": True, "logprobs": 1, "prompt": "<|im_start|>é!"}
    whole = (await served.complete(**fields)).json()["choices"][0]
    assert whole["text"] == "<|im_start|>é!hé, you"
    assert whole["logprobs"]["text_offset"] == [0, 12, 12, 13, 14, 15, 15, 16, 17, 18, 19, 20, 21]
    streamed: dict[str, list[Any]] = {name: [] for name in whole["logprobs"]}
    text = ""
    for chunk in events((await served.complete(**fields, stream=True)).text):
        text += chunk["choices"][0]["text"]
        for name, values in (chunk["choices"][0]["logprobs"] or {}).items():
            streamed[name] += values
    assert (text, streamed) == (whole["text"], whole["logprobs"])


async def test_an_echo_without_logprobs(served: Served) -> None:
    body = (await served.complete("abc", echo=True, n=2, max_tokens=4)).json()
    text = "abc" + bytes(hashed_tokens(b"abc", 4)).decode()
    assert [choice["text"] for choice in body["choices"]] == [text] * 2
    assert [choice["logprobs"] for choice in body["choices"]] == [None] * 2


async def test_echoed_choices_with_logprobs_do_not_stream(served: Served) -> None:
    response = await served.complete("abc", echo=True, logprobs=1, n=2, stream=True)
    assert error_of(response)["param"] == "n"
    whole = (await served.complete("abc", echo=True, logprobs=1, n=2, max_tokens=2)).json()["choices"]
    assert whole[0]["logprobs"] == whole[1]["logprobs"]


async def test_prompt_logprobs(served: Served) -> None:
    values = prompt_values(list(b"abc"))
    expected = [
        None,
        {"98": {"logprob": values[0], "rank": None, "decoded_token": "b"}},
        {"99": {"logprob": values[1], "rank": None, "decoded_token": "c"}},
    ]
    completion = (await served.complete("abc", prompt_logprobs=0, max_tokens=1)).json()
    assert completion["choices"][0]["prompt_logprobs"] == expected
    assert completion["choices"][0]["logprobs"] is None
    chat = (await served.chat(prompt_logprobs=1, return_token_ids=True, max_tokens=2)).json()
    ids = chat["prompt_token_ids"]
    assert [list(map(int, entry)) for entry in chat["prompt_logprobs"][1:]] == [[i] for i in ids[1:]]
    assert chat["prompt_logprobs"][1][str(ids[1])]["rank"] == 1
    assert chat["choices"][0]["token_ids"] == hashed_tokens(ids, 2)
    for response in (
        await served.complete(prompt_logprobs=1, stream=True),
        await served.chat(prompt_logprobs=1, stream=True),
    ):
        assert error_of(response)["param"] == "prompt_logprobs"


async def test_preempted_prompts_are_measured_once_and_whole() -> None:
    prompts = [list(f"{n} prompts do not fit".encode()) for n in range(8)]
    async with serving(num_pages=24, max_batch_tokens=7) as small:
        body = (await small.complete(prompts, echo=True, logprobs=0, max_tokens=30)).json()
        assert small.engine.stats.preemptions > 0
    for ids, choice in zip(prompts, body["choices"], strict=True):
        measured = choice["logprobs"]["token_logprobs"][1 : len(ids)]
        assert measured == prompt_values(ids)
        assert choice["text"] == bytes([*ids, *hashed_tokens(ids, 30)]).decode()


@pytest.mark.parametrize("chat", [False, True])
async def test_token_ids_are_told_in_streams(served: Served, *, chat: bool) -> None:
    served.runner.script = say("hé!")
    ask = served.chat if chat else served.complete
    chunks = events((await ask("hi", return_token_ids=True, stream=True)).text)
    of_prompt = [
        item["prompt_token_ids"]
        for chunk in chunks
        for item in (chunk, *chunk["choices"])
        if "prompt_token_ids" in item
    ]
    (prompt,) = of_prompt
    assert prompt[-2:] == list(b"t\n" if chat else b"hi")
    ids = [i for chunk in chunks for choice in chunk["choices"] for i in choice.get("token_ids", [])]
    assert ids == [*"hé!".encode(), 258]


async def test_prompts_are_truncated_from_the_left(served: Served) -> None:
    body = (
        await served.complete("x" * 9000 + "abc", truncate_prompt_tokens=3, echo=True, max_tokens=4)
    ).json()
    assert body["choices"][0]["text"] == "abc" + bytes(hashed_tokens(b"abc", 4)).decode()
    assert body["usage"]["prompt_tokens"] == 3
    usage = (await served.chat("y" * 9000, truncate_prompt_tokens=5, max_tokens=1)).json()["usage"]
    assert usage["prompt_tokens"] == 5
