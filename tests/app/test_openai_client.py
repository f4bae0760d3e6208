"""The official client, asynchronous and synchronous, against a real server: it gets what was said."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Literal

import openai
import pydantic
import pytest
from openai.types.chat import (
    ChatCompletionMessageParam,
    ChatCompletionNamedToolChoiceParam,
    ChatCompletionToolParam,
)

from tests.app.harness import Served
from tests.fakes import hashed_tokens, say

HI: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hi"}]


class City(pydantic.BaseModel):
    """A city."""

    name: str
    size: Literal["small", "large"]
    districts: list[str]


CITY = '{"name":"Bern","size":"small","districts":["Altstadt"]}'
CITY_TOOL: ChatCompletionToolParam = openai.pydantic_function_tool(City)


@pytest.fixture
async def client(served: Served) -> AsyncIterator[openai.AsyncOpenAI]:
    async with served.openai() as client:
        yield client


async def test_models(client: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in client.models.list()] == ["fake"]
    assert (await client.models.retrieve("fake")).id == "fake"
    with pytest.raises(openai.NotFoundError, match="gpt"):
        await client.models.retrieve("gpt")


async def test_chat(served: Served, client: openai.AsyncOpenAI) -> None:
    served.runner.script = say("Hello!", "Bye!")
    answer = await client.chat.completions.create(model="fake", messages=HI, n=2, temperature=0)
    assert [choice.message.content for choice in answer.choices] == ["Hello!", "Bye!"]
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len("Hello!") + len("Bye!") + 2


async def test_streamed_chat(served: Served, client: openai.AsyncOpenAI) -> None:
    served.runner.script = say("Hello!")
    chunks = [
        chunk
        async for chunk in await client.chat.completions.create(
            model="fake", messages=HI, stream=True, stream_options={"include_usage": True}
        )
    ]
    assert "".join(c.choices[0].delta.content or "" for c in chunks[:-1]) == "Hello!"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 21 + 7


async def test_the_stream_helper_takes_several_choices(served: Served, client: openai.AsyncOpenAI) -> None:
    """A19: it builds its list of choices by the order in which they begin."""
    served.runner.script = say("", "second", "the third")
    async with client.chat.completions.stream(model="fake", messages=HI, n=3) as stream:
        events = [event async for event in stream]
        final = await stream.get_final_completion()
    assert [choice.message.content for choice in final.choices] == ["", "second", "the third"]
    assert {"content.delta", "content.done"} <= {event.type for event in events}


async def test_parse(served: Served, client: openai.AsyncOpenAI) -> None:
    served.runner.script = say(CITY)
    answer = await client.chat.completions.parse(model="fake", messages=HI, response_format=City)
    assert answer.choices[0].message.parsed == City(name="Bern", size="small", districts=["Altstadt"])


async def test_parsed_tool_calls(served: Served, client: openai.AsyncOpenAI) -> None:
    served.runner.script = say(f'[{{"name":"City","arguments":{CITY}}}]')
    answer = await client.chat.completions.parse(
        model="fake", messages=HI, tools=[CITY_TOOL], tool_choice="required"
    )
    (call,) = answer.choices[0].message.tool_calls or []
    assert call.function.parsed_arguments == City(name="Bern", size="small", districts=["Altstadt"])


async def test_the_stream_helper_takes_tool_calls(served: Served, client: openai.AsyncOpenAI) -> None:
    served.runner.script = say(f'[{{"name":"City","arguments":{CITY}}},{{"name":"City","arguments":{CITY}}}]')
    async with client.chat.completions.stream(
        model="fake", messages=HI, tools=[CITY_TOOL], tool_choice="required"
    ) as stream:
        events = [event async for event in stream]
        final = await stream.get_final_completion()
    calls = final.choices[0].message.tool_calls or []
    assert [call.function.arguments for call in calls] == [CITY, CITY]
    assert sum(event.type == "tool_calls.function.arguments.done" for event in events) == 2
    assert final.choices[0].finish_reason == "tool_calls"


async def test_a_conversation_with_a_tool(served: Served, client: openai.AsyncOpenAI) -> None:
    """The client's own message objects go back as they came: its examples do so, if not its types."""
    served.runner.script = say(CITY)
    named: ChatCompletionNamedToolChoiceParam = {"type": "function", "function": {"name": "City"}}
    first = await client.chat.completions.create(
        model="fake", messages=HI, tools=[CITY_TOOL], tool_choice=named
    )
    message = first.choices[0].message
    (call,) = message.tool_calls or []
    messages: list[Any] = [*HI, message, {"role": "tool", "tool_call_id": call.id, "content": "ok"}]
    served.runner.script = say("Bern is small.")
    second = await client.chat.completions.create(model="fake", messages=messages, tools=[CITY_TOOL])
    assert second.choices[0].message.content == "Bern is small."


async def test_logprobs(served: Served, client: openai.AsyncOpenAI) -> None:
    served.runner.script = say("hi")
    answer = await client.chat.completions.create(
        model="fake", messages=HI, logprobs=True, top_logprobs=3, max_tokens=2
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert [token.token for token in logprobs.content or []] == ["h", "i"]
    assert [len(token.top_logprobs) for token in logprobs.content or []] == [3, 3]


async def test_completions(client: openai.AsyncOpenAI) -> None:
    answer = await client.completions.create(model="fake", prompt=["one", "two"], max_tokens=8, logprobs=2)
    assert [choice.text for choice in answer.choices] == [
        bytes(hashed_tokens(prompt, 8)).decode() for prompt in (b"one", b"two")
    ]
    text = ""
    async for chunk in await client.completions.create(model="fake", prompt="one", max_tokens=8, stream=True):
        text += chunk.choices[0].text
    assert text == answer.choices[0].text


async def test_errors_become_the_clients_exceptions(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(model="fake", messages=HI, temperature=-1)
    assert caught.value.param == "temperature"
    assert caught.value.request_id
    with pytest.raises(openai.NotFoundError) as missing:
        await client.chat.completions.create(model="gpt", messages=HI)
    assert missing.value.code == "model_not_found"


async def test_the_synchronous_client(served: Served) -> None:
    served.runner.script = say("Hello!")

    def talk() -> tuple[str | None, str]:
        with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
            answer = client.chat.completions.create(model="fake", messages=HI)
            stream = client.chat.completions.create(model="fake", messages=HI, stream=True)
            return (
                answer.choices[0].message.content,
                "".join(chunk.choices[0].delta.content or "" for chunk in stream),
            )

    assert await asyncio.to_thread(talk) == ("Hello!", "Hello!")
