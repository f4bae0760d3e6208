"""POST /v1/messages with Anthropic's own client."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from itertools import groupby
from typing import Any

import anthropic
import pytest
from anthropic.types import MessageParam, ToolParam

from tests.app.harness import Served
from tests.fakes import say

HI: list[MessageParam] = [{"role": "user", "content": "hi"}]
TOOL: ToolParam = {
    "name": "look_up",
    "description": "Looks a city up.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 9}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
CALLS = (
    'Let me see. <tool_call>{"name": "look_up", "arguments": {"city": "Bern"}}</tool_call>'
    '<tool_call>{"name": "look_up", "arguments": {"city": "Rom"}}</tool_call>'
)


@pytest.fixture
async def client(served: Served) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(base_url=served.url, api_key="none", max_retries=0) as client:
        yield client


def prompt_text(served: Served) -> str:
    row = served.runner.batches[-1].samples[0]
    tokenizer = served.engine.tokenizer
    return b"".join(tokenizer.bytes_of(i, skip_special=False) for i in row.tokens[: row.num_prompt]).decode()


async def test_a_message(served: Served, client: anthropic.AsyncAnthropic) -> None:
    served.runner.script = say("Hello!")
    message = await client.messages.create(model="fake", max_tokens=20, system="Be kind.", messages=HI)
    assert [block.model_dump(exclude_none=True) for block in message.content] == [
        {"type": "text", "text": "Hello!"}
    ]
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    assert prompt_text(served) == (
        "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )
    usage = message.usage
    counted = await client.messages.count_tokens(model="fake", system="Be kind.", messages=HI)
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == counted.input_tokens
    assert usage.output_tokens == len("Hello!") + 1


@pytest.mark.parametrize(
    ("fields", "ending", "text"),
    [
        ({"max_tokens": 3}, ("max_tokens", None), "Hel"),
        ({"max_tokens": 9, "stop_sequences": ["lo", "x"]}, ("stop_sequence", "lo"), "Hel"),
    ],
)
async def test_why_it_stopped(
    served: Served,
    client: anthropic.AsyncAnthropic,
    fields: dict[str, Any],
    ending: tuple[str, str | None],
    text: str,
) -> None:
    served.runner.script = say("Hello!")
    message = await client.messages.create(model="fake", messages=HI, **fields)
    assert (message.stop_reason, message.stop_sequence) == ending
    assert message.content[0].type == "text"
    assert message.content[0].text == text


async def test_the_events_of_a_stream(served: Served, client: anthropic.AsyncAnthropic) -> None:
    served.runner.script = say(CALLS)
    stream = await client.messages.create(
        model="fake", max_tokens=200, messages=HI, tools=[TOOL], stream=True
    )
    events = [event async for event in stream]
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    assert [kind for kind, _ in groupby(event.type for event in events)] == [
        "message_start",
        *block * 3,
        "message_delta",
        "message_stop",
    ]
    starts = [event for event in events if event.type == "content_block_start"]
    assert [(start.index, start.content_block.type) for start in starts] == [
        (0, "text"),
        (1, "tool_use"),
        (2, "tool_use"),
    ]
    written = ["", "", ""]
    for event in events:
        if event.type == "content_block_delta":
            delta = event.delta.model_dump()
            written[event.index] += delta.get("text") or delta.get("partial_json") or ""
    assert written[0] == "Let me see. "
    assert [json.loads(text) for text in written[1:]] == [{"city": "Bern"}, {"city": "Rom"}]
    ending = events[-2]
    assert ending.type == "message_delta"
    assert ending.delta.stop_reason == "tool_use"
    assert ending.usage.output_tokens == len(CALLS) + 1


async def test_results_go_back(served: Served, client: anthropic.AsyncAnthropic) -> None:
    served.runner.script = say(CALLS)
    async with client.messages.stream(model="fake", max_tokens=200, messages=HI, tools=[TOOL]) as stream:
        message = await stream.get_final_message()
    whole = await client.messages.create(model="fake", max_tokens=200, messages=HI, tools=[TOOL])
    for answer in (message, whole):
        calls = [block for block in answer.content if block.type == "tool_use"]
        assert [call.input for call in calls] == [{"city": "Bern"}, {"city": "Rom"}]
        assert all(call.id.startswith("toolu_") for call in calls)
    served.runner.script = say("Few.")
    results: Any = [
        {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": f"{n} people"}]}
        for n, call in enumerate(calls)
    ]
    conversation: list[MessageParam] = [
        *HI,
        {"role": "assistant", "content": whole.content},
        {"role": "user", "content": [*results, {"type": "text", "text": "Well?"}]},
    ]
    answer = await client.messages.create(
        model="fake", max_tokens=9, messages=conversation, tools=[TOOL], tool_choice={"type": "none"}
    )
    assert answer.stop_reason == "end_turn"
    prompt = prompt_text(served)
    for text in ("Let me see. ", '"Rom"', "tool\n0 people<", "tool\n1 people<", "user\nWell?<"):
        assert prompt.count(text) == 1


async def test_a_call_can_be_required(served: Served, client: anthropic.AsyncAnthropic) -> None:
    choices: list[Any] = [
        {"type": "any", "disable_parallel_tool_use": True},
        {"type": "tool", "name": "look_up"},
    ]
    for choice in choices:
        message = await client.messages.create(
            model="fake", max_tokens=120, messages=HI, tools=[TOOL], tool_choice=choice
        )
        (block,) = message.content
        assert block.type == "tool_use"
        assert isinstance(block.input["city"], str)
        assert message.stop_reason == "tool_use"


async def test_structured_output(served: Served, client: anthropic.AsyncAnthropic) -> None:
    served.runner.script = say('{"city":"Bern"}')
    message = await client.messages.create(
        model="fake",
        max_tokens=40,
        messages=HI,
        output_config={"format": {"type": "json_schema", "schema": dict(TOOL["input_schema"])}},
    )
    assert message.content[0].type == "text"
    assert json.loads(message.content[0].text) == {"city": "Bern"}


async def test_the_last_turn_of_the_assistant_is_gone_on_with(
    served: Served, client: anthropic.AsyncAnthropic
) -> None:
    conversation: list[MessageParam] = [*HI, {"role": "assistant", "content": "The answer is"}]
    await client.messages.create(model="fake", max_tokens=3, messages=conversation)
    assert prompt_text(served).endswith("<|im_start|>assistant\nThe answer is")


@pytest.mark.parametrize(
    ("fields", "status", "message"),
    [
        ({"model": "other"}, 404, "model"),
        ({"messages": []}, 400, "messages"),
        ({"max_tokens": 0}, 400, "max_tokens"),
        ({"max_tokens": 10**6}, 400, "maximum context length"),
        ({"temperature": 2}, 400, "temperature"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, 400, "thinking"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
            400,
            "messages[0].content[0].type",
        ),
        ({"tools": [{"type": "web_search_20250305", "name": "x"}]}, 400, "tools[0]"),
        ({"tool_choice": {"type": "tool"}, "tools": [TOOL]}, 400, "tool_choice.name"),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": {"pattern": "("}}}},
            400,
            "output_config.format: pattern: a group does not end (at /pattern)",
        ),
        (
            {"tools": [{"name": "a", "input_schema": {"pattern": "("}}], "tool_choice": {"type": "any"}},
            400,
            "tools[0].input_schema: pattern: a group does not end (at /pattern)",
        ),
    ],
)
async def test_what_is_wrong_is_refused_in_its_own_form(
    served: Served, fields: dict[str, Any], status: int, message: str
) -> None:
    response = await served.post("messages", {"model": "fake", "max_tokens": 5, "messages": HI, **fields})
    body = response.json()
    assert response.status_code == status
    assert (body["type"], list(body["error"])) == ("error", ["type", "message"])
    assert message in body["error"]["message"]


async def test_a_failure_is_the_last_event(served: Served, client: anthropic.AsyncAnthropic) -> None:
    served.runner.fails = lambda batch: True
    with pytest.raises(anthropic.APIStatusError, match="failed"):
        async with client.messages.stream(model="fake", max_tokens=5, messages=HI) as stream:
            await stream.get_final_message()
