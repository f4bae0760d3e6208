"""The shipped model behind the real server, asked by the official client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import jsonschema
import openai
import pytest
import torch
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam
from transformers import AutoModelForCausalLM, PreTrainedModel

from engine.config import Config
from engine.load import load_engine
from engine.models.loader import embedded_model_path
from tests.app.harness import Served, serving_engine
from tests.fakes import assert_quiet, collect, generate_request

QUESTION = "What is the capital of France?"
SYSTEM: ChatCompletionMessageParam = {"role": "system", "content": "You answer in one short sentence."}
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "capital": {"type": "boolean"}},
    "required": ["city", "capital"],
    "additionalProperties": False,
}
TOOL: ChatCompletionToolParam = {
    "type": "function",
    "function": {"name": "look_up", "description": "Looks a city up.", "parameters": CITY},
}


@pytest.fixture(scope="module")
def oracle() -> PreTrainedModel:
    path = embedded_model_path()
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        str(path.parent), gguf_file=path.name, dtype=torch.float32
    )
    return model


def ask(question: str) -> list[ChatCompletionMessageParam]:
    return [SYSTEM, {"role": "user", "content": question}]


@pytest.fixture(scope="module")
async def real() -> AsyncIterator[Served]:
    config = Config(dtype="float32", kv_memory=256, port=0, max_context=2048)
    async with serving_engine(load_engine(config, lambda stage, fraction: None)) as served:
        yield served
        assert_quiet(served.engine)


@pytest.fixture(scope="module")
async def client(real: Served) -> AsyncIterator[openai.AsyncOpenAI]:
    async with real.openai() as client:
        yield client


@pytest.fixture(scope="module")
async def expected(real: Served) -> str:
    """What the engine itself says to the prompt that the model was trained on."""
    text = (
        f"<|im_start|>system\n{SYSTEM['content']}<|im_end|>\n<|im_start|>user\n{QUESTION}<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    ids = real.engine.tokenizer.encode(text, add_special=False, parse_special=True)
    (output,) = await collect(
        real.engine.submit(generate_request(ids, max_tokens=24, temperature=0.0), request_id="expected")
    )
    assert "Paris" in output.text
    return output.text


async def test_chat(client: openai.AsyncOpenAI, expected: str) -> None:
    model = (await client.models.list()).data[0].id
    answer = await client.chat.completions.create(
        model=model, messages=ask(QUESTION), temperature=0, max_tokens=24
    )
    assert answer.choices[0].message.content == expected
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert (answer.usage.prompt_tokens_details.cached_tokens or 0) > 0


async def test_streamed_chat_with_neighbours(real: Served, client: openai.AsyncOpenAI, expected: str) -> None:
    async def one(question: str) -> str:
        text = ""
        async for chunk in await client.chat.completions.create(
            model=real.state.model_name, messages=ask(question), temperature=0, max_tokens=24, stream=True
        ):
            text += chunk.choices[0].delta.content or ""
        return text

    questions = [QUESTION, "What is a whale?", QUESTION, "Count to ten.", "Why is the sky blue?"]
    answers = await asyncio.gather(*map(one, questions))
    assert answers[0] == answers[2] == expected


async def test_logprobs(real: Served, client: openai.AsyncOpenAI, expected: str) -> None:
    answer = await client.chat.completions.create(
        model=real.state.model_name,
        messages=ask(QUESTION),
        temperature=0,
        max_tokens=24,
        logprobs=True,
        top_logprobs=5,
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    tokens = logprobs.content or []
    assert (
        b"".join(bytes(token.bytes or []) for token in tokens).decode().removesuffix("<|im_end|>") == expected
    )
    for token in tokens:
        values = [top.logprob for top in token.top_logprobs]
        assert values == sorted(values, reverse=True)
        assert token.logprob == values[0] <= 0


async def test_constrained_answers(real: Served, client: openai.AsyncOpenAI) -> None:
    schemas = [{**CITY, "properties": {**CITY["properties"], f"x{n}": {"enum": [n]}}} for n in range(3)]  # type: ignore[dict-item]

    async def one(schema: dict[str, Any], question: str) -> None:
        answer = await client.chat.completions.create(
            model=real.state.model_name,
            messages=ask(question),
            max_tokens=60,
            seed=1,
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "city", "schema": schema, "strict": True},
            },
        )
        assert answer.choices[0].finish_reason == "stop"
        jsonschema.validate(json.loads(answer.choices[0].message.content or ""), schema)

    await asyncio.gather(*(one(schema, q) for schema in schemas for q in (QUESTION, "Name a big city.")))


async def test_tools(real: Served, client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(
        model=real.state.model_name,
        messages=ask("Look Bern up."),
        temperature=0,
        max_tokens=80,
        tools=[TOOL],
        tool_choice="required",
        parallel_tool_calls=False,
    )
    (choice,) = answer.choices
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls or []
    assert call.type == "function"
    assert call.function.name == "look_up"
    jsonschema.validate(json.loads(call.function.arguments), CITY)


async def test_completions_from_ids(real: Served, client: openai.AsyncOpenAI) -> None:
    prompt = "The capital of France is"
    ids = real.engine.tokenizer.encode(prompt, add_special=True, parse_special=True)
    by_text, by_ids = await asyncio.gather(
        *(
            client.completions.create(model=real.state.model_name, prompt=given, temperature=0, max_tokens=8)
            for given in (prompt, ids)
        )
    )
    assert by_text.choices[0].text == by_ids.choices[0].text
    assert "Paris" in by_text.choices[0].text


async def test_prompt_logprobs_are_those_of_transformers(
    real: Served, client: openai.AsyncOpenAI, oracle: PreTrainedModel
) -> None:
    """A22, A24: cold, warm and in chunks; and the argmax's value is bit-equal to the highest."""
    text = "The capital of France is Paris. The capital of Italy is Rome. " * 12
    ids = real.engine.tokenizer.encode(text, add_special=False, parse_special=False)
    with torch.inference_mode():
        reference = oracle(torch.tensor([ids])).logits[0].log_softmax(-1)
    expected = [float(reference[at, token_id]) for at, token_id in enumerate(ids[1:])]
    for _ in range(2):
        answer = await client.completions.create(
            model=real.state.model_name, prompt=[ids], echo=True, logprobs=1, max_tokens=1, temperature=0
        )
        logprobs = answer.choices[0].logprobs
        assert logprobs is not None
        assert logprobs.token_logprobs is not None
        assert logprobs.top_logprobs is not None
        assert logprobs.token_logprobs[:1] == [None]
        assert len(logprobs.token_logprobs) == len(ids) + 1
        assert logprobs.token_logprobs[1:-1] == pytest.approx(expected, abs=2e-3)
        for at, (value, top) in enumerate(
            zip(logprobs.token_logprobs[1:-1], logprobs.top_logprobs[1:-1], strict=True)
        ):
            if int(reference[at].argmax()) == ids[at + 1]:
                assert value == max(top.values())
    measured = await client.completions.create(
        model=real.state.model_name, prompt=[ids], echo=True, max_tokens=0, logprobs=0
    )
    assert measured.choices[0].text == text.removesuffix(" ") + text[-1:]


async def test_embeddings_are_transformers_hidden_states(
    real: Served, client: openai.AsyncOpenAI, oracle: PreTrainedModel
) -> None:
    texts = ["The capital of France is Paris.", "Bees make honey.", "The capital of France is Rome."]
    answer = await client.embeddings.create(model=real.state.model_name, input=texts)
    for text, item in zip(texts, answer.data, strict=True):
        ids = real.engine.tokenizer.encode(text, add_special=True, parse_special=True)
        with torch.inference_mode():
            state = oracle.base_model(torch.tensor([ids])).last_hidden_state[0, -1]
        given = torch.tensor(item.embedding)
        assert len(given) == 576
        assert float(given.norm()) == pytest.approx(1, abs=1e-5)
        assert float(torch.cosine_similarity(given, state, dim=0)) > 0.99999


async def test_scores_are_transformers_probabilities(real: Served, oracle: PreTrainedModel) -> None:
    query, items, labels = "The capital of France is", ["", " not"], [" Paris", " Rome", " the city of Paris"]
    body = {"query": query, "items": items, "labels": labels}
    answer = (await real.post("score", body)).json()
    encode = real.engine.tokenizer.encode
    for item, told in zip(items, answer["logprobs"], strict=True):
        prompt = encode(query + item, add_special=True, parse_special=True)
        for label, score in zip(labels, told, strict=True):
            ids = encode(label, add_special=False, parse_special=True)
            with torch.inference_mode():
                reference = oracle(torch.tensor([[*prompt, *ids]])).logits[0].log_softmax(-1)
            expected = [float(reference[len(prompt) - 1 + at, token_id]) for at, token_id in enumerate(ids)]
            assert score["token_ids"] == ids
            assert score["token_logprobs"] == pytest.approx(expected, abs=2e-3)
            assert score["logprob"] == pytest.approx(sum(expected), abs=5e-3)
    assert answer["scores"][0][0] > answer["scores"][0][1]


async def test_words_that_are_ruled_out(real: Served, client: openai.AsyncOpenAI) -> None:
    async def ask_with(**extra: Any) -> str:
        answer = await client.chat.completions.create(
            model=real.state.model_name,
            messages=ask(QUESTION),
            temperature=0,
            max_tokens=24,
            extra_body=extra,
        )
        return answer.choices[0].message.content or ""

    assert "Paris" in await ask_with()
    assert "Paris" not in await ask_with(bad_words=["Paris"])
    ids = real.engine.tokenizer.encode(" yes no", add_special=False, parse_special=False)
    words = (await ask_with(allowed_token_ids=ids, min_tokens=5)).split()
    assert words
    assert set(words) <= {"yes", "no"}
