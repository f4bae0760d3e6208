"""instructor, pydantic-ai and LangChain against a running server: each must get values of the right type."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated, Any, Literal

import instructor
import openai
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

QUESTION = "Bern is a city with 130000 people. Describe it."


class City(BaseModel):
    """A city."""

    name: Annotated[str, Field(max_length=16)]
    size: Literal["small", "large"]
    people: Annotated[int, Field(ge=0, le=10**7)]


def check_instructor(url: str, model: str) -> None:
    for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
        client = instructor.from_openai(openai.OpenAI(base_url=url, api_key="none"), mode=mode)
        messages: list[Any] = [{"role": "user", "content": QUESTION}]
        city = client.chat.completions.create(
            model=model, messages=messages, response_model=City, max_tokens=120, max_retries=0
        )
        assert isinstance(city, City), city
    partial = client.chat.completions.create_partial(
        model=model, messages=messages, response_model=City, max_tokens=120, max_retries=0
    )
    *_, last = partial
    City.model_validate(last.model_dump())


def check_pydantic_ai(url: str, model: str) -> None:
    provider = OpenAIProvider(base_url=url, api_key="none")
    for kind in (OpenAIChatModel, OpenAIResponsesModel):
        served = kind(model, provider=provider)
        for output in (ToolOutput(City), NativeOutput(City)):
            agent = Agent(served, output_type=output, retries=0, model_settings={"max_tokens": 120})
            assert isinstance(agent.run_sync(QUESTION).output, City)
        said = Agent(served, model_settings={"max_tokens": 8}).run_sync("Say hello.").output
        assert isinstance(said, str)
        assert said


def check_langchain(url: str, model: str) -> None:
    chat = ChatOpenAI(base_url=url, api_key="none", model=model, max_tokens=120, temperature=0, max_retries=0)
    whole = chat.invoke("Say hello.").content
    assert whole
    assert "".join(str(chunk.content) for chunk in chat.stream("Say hello.")) == whole
    for method in ("json_schema", "function_calling"):
        assert isinstance(chat.with_structured_output(City, method=method).invoke(QUESTION), City)
    assert isinstance(
        chat.with_structured_output(None, method="json_mode").invoke(QUESTION + " In JSON."), dict
    )
    (call,) = chat.bind_tools([City], tool_choice="City").invoke(QUESTION).tool_calls
    City.model_validate(call["args"])


CHECKS: tuple[Callable[[str, str], None], ...] = (check_instructor, check_pydantic_ai, check_langchain)


def main(server: str) -> None:
    url = f"{server.rstrip('/')}/v1"
    model = openai.OpenAI(base_url=url, api_key="none").models.list().data[0].id
    for check in CHECKS:
        check(url, model)
        print(f"{check.__name__.removeprefix('check_')}: right")


if __name__ == "__main__":
    main(sys.argv[1])
