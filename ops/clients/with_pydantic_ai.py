"""pydantic-ai: both of its models for OpenAI's servers, every output mode, streams."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic_ai import Agent, NativeOutput, PromptedOutput, ToolOutput
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from ops.clients.city import City
from ops.clients.served import DESCRIBE, QUESTION, TOKENS, Server, joined, prove, refused, same

KINDS = (OpenAIChatModel, OpenAIResponsesModel)


class Anything(BaseModel):
    """An object: prompted output puts the schema into the prompt, where no server can see it."""

    model_config = ConfigDict(extra="allow")


def agent(server: Server, kind: Any, output_type: Any = str, **settings: Any) -> Any:
    model = kind(server.model, provider=OpenAIProvider(base_url=server.openai_url, api_key="none"))
    settings = {"max_tokens": TOKENS, "temperature": 0, **settings}
    return Agent(model, output_type=output_type, retries=0, model_settings=settings)


def text(server: Server) -> None:
    for kind in KINDS:
        result = agent(server, kind).run_sync(QUESTION)
        same(result.output, server.said())
        usage = result.usage
        same(usage.total_tokens, usage.input_tokens + usage.output_tokens)
        assert usage.output_tokens > 0


def tool_output(server: Server) -> None:
    for kind in KINDS:
        assert isinstance(agent(server, kind, ToolOutput(City)).run_sync(DESCRIBE).output, City)


def native_output(server: Server) -> None:
    for kind in KINDS:
        assert isinstance(agent(server, kind, NativeOutput(City)).run_sync(DESCRIBE).output, City)


def prompted_output(server: Server) -> None:
    for kind in KINDS:
        assert isinstance(agent(server, kind, PromptedOutput(Anything)).run_sync(DESCRIBE).output, Anything)


def stream(server: Server) -> None:
    async def pieces(kind: Any) -> list[str]:
        async with agent(server, kind).run_stream(QUESTION) as answer:
            return [piece async for piece in answer.stream_text(delta=True, debounce_by=None)]

    async def cities(kind: Any, output: Any) -> list[City]:
        async with agent(server, kind, output).run_stream(DESCRIBE) as answer:
            return [city async for city in answer.stream_output(debounce_by=None)]

    for kind in KINDS:
        joined(asyncio.run(pieces(kind)), server.said())
        for output in (ToolOutput(City), NativeOutput(City)):
            last = asyncio.run(cities(kind, output))[-1]
            same(last, agent(server, kind, output).run_sync(DESCRIBE).output)


def errors(server: Server) -> None:
    for kind in KINDS:
        asked = agent(server, kind, top_p=7)
        error = refused(ModelHTTPError, partial(asked.run_sync, QUESTION))
        assert isinstance(error.body, dict)
        same((error.status_code, error.body["param"]), (400, "top_p"))


if __name__ == "__main__":
    prove("pydantic-ai-slim", text, tool_output, native_output, prompted_output, stream, errors)
