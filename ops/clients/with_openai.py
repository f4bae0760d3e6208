"""The official client, 2.x and 3.x."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import Any

import openai
from openai.types.chat import ChatCompletionMessageParam

from ops.clients.city import City
from ops.clients.served import DESCRIBE, QUESTION, TOKENS, Server, joined, near, prove, refused, same

MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": QUESTION}]
DESCRIBED: list[ChatCompletionMessageParam] = [{"role": "user", "content": DESCRIBE}]
SCHEMA = City.model_json_schema()
TOOL = openai.pydantic_function_tool(City)


def connect(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.openai_url, api_key="none", max_retries=0)


def chat(server: Server) -> None:
    client = connect(server)
    same([model.id for model in client.models.list()], [server.model])
    answer = client.chat.completions.create(
        model=server.model,
        messages=MESSAGES,
        temperature=0,
        max_tokens=TOKENS,
        logprobs=True,
        top_logprobs=3,
    )
    plain = server.chat(logprobs=True, top_logprobs=3)
    (choice,) = answer.choices
    same(choice.message.content, plain["message"]["content"])
    same(choice.finish_reason, plain["finish_reason"])
    assert choice.logprobs is not None
    same([entry.model_dump() for entry in choice.logprobs.content or []], plain["logprobs"]["content"])
    assert answer.usage is not None
    usage = answer.usage
    same(usage.completion_tokens, len(choice.logprobs.content or []))
    same(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens)


def stream(server: Server) -> None:
    client = connect(server)
    plain = server.whole_chat(messages=MESSAGES, max_tokens=TOKENS)
    whole = plain["choices"][0]["message"]["content"]
    chunks = list(
        client.chat.completions.create(
            model=server.model,
            messages=MESSAGES,
            temperature=0,
            max_tokens=TOKENS,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    joined((choice.delta.content for chunk in chunks for choice in chunk.choices), whole)
    assert chunks[-1].usage is not None
    same(chunks[-1].usage.total_tokens, plain["usage"]["total_tokens"])
    with client.chat.completions.stream(
        model=server.model, messages=MESSAGES, temperature=0, max_tokens=TOKENS
    ) as events:
        joined((event.delta for event in events if event.type == "content.delta"), whole)
        same(events.get_final_completion().choices[0].message.content, whole)


def asynchronous(server: Server) -> None:
    whole = server.said()

    async def ask(client: openai.AsyncOpenAI) -> list[str]:
        return [
            chunk.choices[0].delta.content or ""
            async for chunk in await client.chat.completions.create(
                model=server.model, messages=MESSAGES, temperature=0, max_tokens=TOKENS, stream=True
            )
        ]

    async def ask_eight() -> list[list[str]]:
        async with openai.AsyncOpenAI(base_url=server.openai_url, api_key="none", max_retries=0) as client:
            return await asyncio.gather(*(ask(client) for _ in range(8)))

    for pieces in asyncio.run(ask_eight()):
        joined(pieces, whole)


def parse(server: Server) -> None:
    client = connect(server)
    answer = client.chat.completions.parse(
        model=server.model, messages=DESCRIBED, response_format=City, temperature=0, max_tokens=TOKENS
    )
    form = {
        "type": "json_schema",
        "json_schema": {"name": "City", "schema": SCHEMA | {"additionalProperties": False}, "strict": True},
    }
    city = City.model_validate_json(server.said(DESCRIBE, response_format=form))
    same(answer.choices[0].message.parsed, city)
    with client.chat.completions.stream(
        model=server.model, messages=DESCRIBED, response_format=City, temperature=0, max_tokens=TOKENS
    ) as events:
        same(events.get_final_completion().choices[0].message.parsed, city)


def tools(server: Server) -> None:
    client = connect(server)
    plain = server.chat(DESCRIBE, tools=[TOOL], tool_choice="required", parallel_tool_calls=False)
    (wanted,) = plain["message"]["tool_calls"]
    city = City.model_validate_json(wanted["function"]["arguments"])
    answer = client.chat.completions.parse(
        model=server.model,
        messages=DESCRIBED,
        tools=[TOOL],
        tool_choice="required",
        parallel_tool_calls=False,
        temperature=0,
        max_tokens=TOKENS,
    )
    message = answer.choices[0].message
    (call,) = message.tool_calls or []
    same(call.function.parsed_arguments, city)
    with client.chat.completions.stream(
        model=server.model,
        messages=DESCRIBED,
        tools=[TOOL],
        tool_choice="required",
        parallel_tool_calls=False,
        temperature=0,
        max_tokens=TOKENS,
    ) as events:
        done = [event for event in events if event.type == "tool_calls.function.arguments.done"]
        same([event.parsed_arguments for event in done], [city])
        same(events.get_final_completion().choices[0].finish_reason, "tool_calls")
    told: list[ChatCompletionMessageParam] = [
        *DESCRIBED,
        message,  # type: ignore[list-item]  # the client's examples send its own objects back
        {"role": "tool", "tool_call_id": call.id, "content": "Noted."},
    ]
    after = client.chat.completions.create(
        model=server.model, messages=told, tools=[TOOL], tool_choice="none", temperature=0, max_tokens=8
    )
    sent = [*DESCRIBED, plain["message"], {**told[-1], "tool_call_id": wanted["id"]}]
    then = server.whole_chat(messages=sent, tools=[TOOL], tool_choice="none", max_tokens=8)
    same(after.choices[0].message.content, then["choices"][0]["message"]["content"])


def completions(server: Server) -> None:
    client = connect(server)
    prompts = ["The capital of France is", "Radishes are"]
    answer = client.completions.create(
        model=server.model, prompt=prompts, temperature=0, max_tokens=8, echo=True, logprobs=2
    )
    plain = server.post("/v1/completions", prompt=prompts, temperature=0, max_tokens=8, echo=True, logprobs=2)
    for choice, wanted, prompt in zip(answer.choices, plain["choices"], prompts, strict=True):
        same(choice.text, wanted["text"])
        assert choice.text.startswith(prompt)
        assert choice.logprobs is not None
        same(choice.logprobs.model_dump(), wanted["logprobs"])
    chunks = client.completions.create(
        model=server.model, prompt=prompts[0], temperature=0, max_tokens=8, stream=True
    )
    whole = plain["choices"][0]["text"].removeprefix(prompts[0])
    joined((chunk.choices[0].text for chunk in chunks), whole)


def responses(server: Server) -> None:
    client = connect(server)
    whole = server.said()
    answer = client.responses.create(
        model=server.model, input=QUESTION, temperature=0, max_output_tokens=TOKENS
    )
    same(answer.output_text, whole)
    same(client.responses.retrieve(answer.id).output_text, whole)
    assert answer.usage is not None
    same(answer.usage.total_tokens, answer.usage.input_tokens + answer.usage.output_tokens)
    with client.responses.stream(
        model=server.model, input=QUESTION, temperature=0, max_output_tokens=TOKENS
    ) as events:
        joined((event.delta for event in events if event.type == "response.output_text.delta"), whole)
        same(events.get_final_response().output_text, whole)
    parsed = client.responses.parse(
        model=server.model, input=DESCRIBE, text_format=City, temperature=0, max_output_tokens=TOKENS
    )
    assert isinstance(parsed.output_parsed, City)
    same(parsed.output_parsed.model_dump(), json.loads(parsed.output_text))
    follow = client.responses.create(
        model=server.model,
        input="And Basel?",
        previous_response_id=answer.id,
        temperature=0,
        max_output_tokens=8,
    )
    told = [*MESSAGES, {"role": "assistant", "content": whole}, {"role": "user", "content": "And Basel?"}]
    then = server.whole_chat(messages=told, max_tokens=8)
    same(follow.output_text, then["choices"][0]["message"]["content"])


def embeddings(server: Server) -> None:
    texts = ["Radishes are red.", QUESTION]
    plain = server.vectors(texts)
    client = connect(server)
    packed = client.embeddings.create(model=server.model, input=texts)
    near((entry.embedding for entry in packed.data), plain)
    listed = client.embeddings.create(model=server.model, input=texts, encoding_format="float")
    near((entry.embedding for entry in listed.data), plain)
    same(packed.usage.total_tokens, packed.usage.prompt_tokens)


def errors(server: Server) -> None:
    def ask(**options: Any) -> object:
        return connect(server).chat.completions.create(messages=MESSAGES, **options)

    bad = refused(openai.BadRequestError, lambda: ask(model=server.model, temperature=-1))
    same((bad.status_code, bad.param), (400, "temperature"))
    assert bad.request_id
    for streamed in (False, True):
        missing = refused(openai.NotFoundError, partial(ask, model="other", stream=streamed))
        same(missing.code, "model_not_found")


if __name__ == "__main__":
    prove("openai", chat, stream, asynchronous, parse, tools, completions, responses, embeddings, errors)
