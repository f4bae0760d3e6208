"""LiteLLM, by its routes for any OpenAI server, for vLLM and for Anthropic."""

from __future__ import annotations

import json
import os
from functools import partial
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # or importing it asks a server of its own

import litellm

from ops.clients.city import City
from ops.clients.served import DESCRIBE, QUESTION, TOKENS, Server, joined, near, prove, refused, same

PROVIDERS = ("openai", "hosted_vllm")
TOOL = {
    "type": "function",
    "function": {"name": "City", "description": "A city.", "parameters": City.model_json_schema()},
}
NAMED = {"type": "function", "function": {"name": "City"}}


def ask(server: Server, provider: str, question: str = QUESTION, **options: Any) -> Any:
    return litellm.completion(
        model=f"{provider}/{server.model}",
        api_base=server.openai_url,
        api_key="none",
        messages=[{"role": "user", "content": question}],
        **{"temperature": 0, "max_tokens": TOKENS, "max_retries": 0, **options},
    )


def city_of(calls: Any) -> City:
    """The arguments of the only call. LiteLLM takes `additionalProperties` out of what it sends to vLLM."""
    (call,) = calls
    arguments = json.loads(call.function.arguments)
    return City.model_validate({name: arguments[name] for name in City.model_fields})


def completion(server: Server) -> None:
    plain = server.chat()
    for provider in PROVIDERS:
        answer = ask(server, provider)
        (choice,) = answer.choices
        same((choice.message.content, choice.finish_reason), (plain["message"]["content"], "stop"))
        same(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens)


def stream(server: Server) -> None:
    whole = server.said()
    for provider in PROVIDERS:
        chunks = list(ask(server, provider, stream=True, stream_options={"include_usage": True}))
        joined((choice.delta.content for chunk in chunks for choice in chunk.choices), whole)
        built = litellm.stream_chunk_builder(chunks)
        same(built.choices[0].message.content, whole)
        same(built.usage.total_tokens, ask(server, provider).usage.total_tokens)


def tools(server: Server) -> None:
    (call,) = server.chat(DESCRIBE, tools=[TOOL], tool_choice=NAMED)["message"]["tool_calls"]
    city = City.model_validate_json(call["function"]["arguments"])
    for provider in PROVIDERS:
        for choice in (NAMED, "required"):
            options = {"tools": [TOOL], "tool_choice": choice, "parallel_tool_calls": False}
            answer = ask(server, provider, DESCRIBE, **options)
            same(city_of(answer.choices[0].message.tool_calls), city)
            built = litellm.stream_chunk_builder(
                list(ask(server, provider, DESCRIBE, stream=True, **options))
            )
            same(city_of(built.choices[0].message.tool_calls), city)


def json_schema(server: Server) -> None:
    for provider in PROVIDERS:
        answer = ask(server, provider, DESCRIBE, response_format=City)
        City.model_validate_json(answer.choices[0].message.content)


def text_completion(server: Server) -> None:
    prompt = "The capital of France is"
    plain = server.post("/v1/completions", prompt=prompt, temperature=0, max_tokens=8, logprobs=2)
    answer = litellm.text_completion(
        model=f"text-completion-openai/{server.model}",
        api_base=server.openai_url,
        api_key="none",
        prompt=prompt,
        temperature=0,
        max_tokens=8,
        logprobs=2,
    )
    same(answer.choices[0].text, plain["choices"][0]["text"])
    same(answer.choices[0].logprobs.token_logprobs, plain["choices"][0]["logprobs"]["token_logprobs"])


def embedding(server: Server) -> None:
    texts = ["Radishes are red.", QUESTION]
    for provider in PROVIDERS:
        answer = litellm.embedding(
            model=f"{provider}/{server.model}", api_base=server.openai_url, api_key="none", input=texts
        )
        near((entry["embedding"] for entry in answer.data), server.vectors(texts))


def messages(server: Server) -> None:
    answer = litellm.completion(
        model=f"anthropic/{server.model}",
        api_base=server.url,
        api_key="none",
        messages=[{"role": "user", "content": QUESTION}],
        temperature=0,
        max_tokens=TOKENS,
    )
    same(answer.choices[0].message.content, server.said())


def errors(server: Server) -> None:
    for provider in PROVIDERS:
        error = refused(litellm.BadRequestError, partial(ask, server, provider, top_p=7))
        assert error.status_code == 400
        assert "top_p" in str(error)


if __name__ == "__main__":
    litellm.suppress_debug_info = True
    prove(
        "litellm",
        completion,
        stream,
        tools,
        json_schema,
        text_completion,
        embedding,
        messages,
        errors,
    )
