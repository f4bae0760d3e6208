"""POST /v1/responses with the official client: whole, streamed, kept, gone on from, cancelled."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from itertools import groupby
from typing import Any

import openai
import pydantic
import pytest
from openai.types.responses import FunctionToolParam, ResponseInputParam

from tests.app.harness import Served, error_of, until
from tests.fakes import say

TOOL: FunctionToolParam = {
    "type": "function",
    "name": "look_up",
    "description": "Looks a city up.",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
CALLS = (
    'Let me see. <tool_call>{"name": "look_up", "arguments": {"city": "Bern"}}</tool_call>'
    '<tool_call>{"name": "look_up", "arguments": {"city": "Rom"}}</tool_call>'
)


class City(pydantic.BaseModel):
    name: str
    size: int


@pytest.fixture
async def client(served: Served) -> AsyncIterator[openai.AsyncOpenAI]:
    async with served.openai() as client:
        yield client


def prompt_text(served: Served) -> str:
    """The prompt of the last request that ran, as text."""
    row = served.runner.batches[-1].samples[0]
    tokenizer = served.engine.tokenizer
    return b"".join(tokenizer.bytes_of(i, skip_special=False) for i in row.tokens[: row.num_prompt]).decode()


async def test_a_whole_response(served: Served, client: openai.AsyncOpenAI) -> None:
    served.runner.script = say("Hello!")
    response = await client.responses.create(
        model="fake", input="hi", instructions="Be kind.", temperature=0, metadata={"a": "b"}
    )
    assert response.output_text == "Hello!"
    assert response.status == "completed"
    assert response.id.startswith("resp_")
    assert response.usage is not None
    assert response.usage.output_tokens == len("Hello!") + 1
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens
    assert (response.instructions, response.metadata, response.temperature) == ("Be kind.", {"a": "b"}, 0)
    assert prompt_text(served) == (
        "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )


async def test_a_response_that_is_cut_is_incomplete(client: openai.AsyncOpenAI) -> None:
    response = await client.responses.create(model="fake", input="hi", max_output_tokens=3)
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert len(response.output_text) == 3


async def test_the_events_of_a_text(served: Served, client: openai.AsyncOpenAI) -> None:
    served.runner.script = say("Hi!")
    events = [event async for event in await client.responses.create(model="fake", input="x", stream=True)]
    # How many deltas there are is left to the speed of client and server.
    assert [kind for kind, _ in groupby(event.type for event in events)] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == "Hi!"
    added, done, last = events[2], events[-2], events[-1]
    assert added.type == "response.output_item.added"
    assert done.type == "response.output_item.done"
    assert last.type == "response.completed"
    assert added.item.type == done.item.type == "message"
    assert (added.item.content, added.item.status) == ([], "in_progress")
    assert last.response.output == [done.item]
    assert last.response.output_text == "Hi!"
    kept = await client.responses.retrieve(last.response.id)
    assert kept == last.response


async def test_the_events_of_calls(served: Served, client: openai.AsyncOpenAI) -> None:
    served.runner.script = say(CALLS)
    events = [
        event
        async for event in await client.responses.create(model="fake", input="x", stream=True, tools=[TOOL])
    ]
    types = [event.type for event in events if not event.type.endswith("delta")]
    call = [
        "response.output_item.added",
        "response.function_call_arguments.done",
        "response.output_item.done",
    ]
    assert types[2:] == [
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        *call,
        *call,
        "response.completed",
    ]
    written: dict[int, str] = {}
    for event in events:
        if event.type == "response.function_call_arguments.delta":
            written[event.output_index] = written.get(event.output_index, "") + event.delta
    assert {index: json.loads(text) for index, text in written.items()} == {
        1: {"city": "Bern"},
        2: {"city": "Rom"},
    }
    last = events[-1]
    assert last.type == "response.completed"
    assert [item.type for item in last.response.output] == ["message", "function_call", "function_call"]
    async with client.responses.stream(model="fake", input="x", tools=[TOOL]) as stream:
        final = await stream.get_final_response()
    calls = [item for item in final.output if item.type == "function_call"]
    assert [json.loads(call.arguments)["city"] for call in calls] == ["Bern", "Rom"]


async def test_results_of_calls_go_back(served: Served, client: openai.AsyncOpenAI) -> None:
    """By the whole conversation, and by the id of the response before: the same prompt."""
    served.runner.script = say(CALLS)
    first = await client.responses.create(model="fake", input="Bern?", tools=[TOOL], instructions="Look.")
    calls = [item for item in first.output if item.type == "function_call"]
    results: ResponseInputParam = [
        {"type": "function_call_output", "call_id": call.call_id, "output": f"{index} people"}
        for index, call in enumerate(calls)
    ]
    served.runner.script = say("Few.")
    prompts = []
    conversation: Any = [{"role": "user", "content": "Bern?"}, *first.output, *results]
    for given, previous in ((conversation, None), (results, first.id)):
        answer = await client.responses.create(
            model="fake", input=given, previous_response_id=previous, tools=[TOOL], instructions="Sum."
        )
        assert answer.output_text == "Few."
        assert answer.previous_response_id == previous
        prompts.append(prompt_text(served))
    assert prompts[0] == prompts[1]
    assert "Look." not in prompts[0]
    for text in ("Sum.", "Bern?", "Let me see. ", '"Rom"', "0 people", "1 people"):
        assert prompts[0].count(text) == 1
    third = await client.responses.create(model="fake", input="Go on.", previous_response_id=answer.id)
    assert "Few.<|im_end|>\n<|im_start|>user\nGo on.<|im_end|>" in prompt_text(served)
    assert third.status == "completed"


async def test_structured_output(served: Served, client: openai.AsyncOpenAI) -> None:
    served.runner.script = say('{"name":"Bern","size":3}')
    parsed = await client.responses.parse(model="fake", input="x", text_format=City)
    assert parsed.output_parsed == City(name="Bern", size=3)
    required = await client.responses.create(
        model="fake",
        input="x",
        tools=[TOOL],
        tool_choice={"type": "function", "name": "look_up"},
        max_output_tokens=40,
    )
    assert [item.type for item in required.output] == ["function_call"]


async def test_what_is_not_kept_is_not_found(client: openai.AsyncOpenAI) -> None:
    response = await client.responses.create(model="fake", input="x", store=False, max_output_tokens=1)
    with pytest.raises(openai.NotFoundError, match="no response"):
        await client.responses.retrieve(response.id)
    with pytest.raises(openai.NotFoundError) as caught:
        await client.responses.create(model="fake", input="x", previous_response_id=response.id)
    assert caught.value.param == "previous_response_id"
    kept = await client.responses.create(model="fake", input="x", max_output_tokens=1)
    await client.responses.delete(kept.id)
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(kept.id)


async def test_in_the_background(served: Served, client: openai.AsyncOpenAI) -> None:
    served.runner.pause()
    started = await client.responses.create(model="fake", input="x", background=True, max_output_tokens=5)
    assert (started.status, started.output) == ("in_progress", [])
    with pytest.raises(openai.BadRequestError, match="in_progress"):
        await client.responses.create(model="fake", input="y", previous_response_id=started.id)
    served.runner.resume()
    await until(lambda: served.state.responses.get(started.id, "").response.status != "in_progress")
    finished = await client.responses.retrieve(started.id)
    assert (finished.status, len(finished.output_text), finished.background) == ("incomplete", 5, True)


async def test_cancelling(served: Served, client: openai.AsyncOpenAI) -> None:
    served.runner.pause()
    started = await client.responses.create(model="fake", input="x", background=True)
    cancelled = await client.responses.cancel(started.id)
    assert cancelled.status == "cancelled"
    served.runner.resume()
    await until(lambda: served.engine.load().running == 0)
    assert (await client.responses.retrieve(started.id)).status == "cancelled"
    other = await client.responses.create(model="fake", input="x", max_output_tokens=1)
    with pytest.raises(openai.BadRequestError, match="background"):
        await client.responses.cancel(other.id)


async def test_only_so_many_are_kept(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served.state.responses, "_capacity", 3)
    ids = []
    for _ in range(5):
        response = await served.post("responses", {"model": "fake", "input": "x", "max_output_tokens": 1})
        ids.append(response.json()["id"])
    found = [(await served.http.get(f"/v1/responses/{id_}")).status_code for id_ in ids]
    assert found == [404, 404, 200, 200, 200]


async def test_a_failure_is_the_last_event(served: Served) -> None:
    served.runner.fails = lambda batch: True
    response = await served.post("responses", {"model": "fake", "input": "x", "stream": True})
    *_, name, data = [line for line in response.text.split("\n") if line]
    assert name == "event: error"
    assert json.loads(data.removeprefix("data: "))["code"] == "internal_error"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": [{"type": "web_search_call"}]}, "input[0].type"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
        ({"input": "x" * 10**6}, "input"),
        ({"model": "other"}, "model"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": 10**6}, "max_output_tokens"),
        ({"conversation": "c"}, "conversation"),
        ({"include": ["message.output_text.logprobs"]}, "include"),
        ({"reasoning": {"effort": "high"}}, "reasoning"),
        ({"background": True, "stream": True}, "stream"),
        ({"background": True, "store": False}, "store"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        (
            {"text": {"format": {"type": "json_schema", "name": "x", "schema": {"not": {"$ref": "#"}}}}},
            "text.format",
        ),
    ],
)
async def test_what_is_wrong_is_refused_by_name(served: Served, fields: dict[str, Any], param: str) -> None:
    response = await served.post("responses", {"model": "fake", "input": "x", **fields})
    assert response.status_code in (400, 404), response.text
    assert error_of(response)["param"] == param
