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


def sent(text: str) -> list[dict[str, Any]]:
    """The data of all events."""
    lines = [line for line in text.split("\n") if line.startswith("data: ")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


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


async def test_only_so_many_bytes_are_kept(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what a conversation took altogether, whatever fields it came in."""
    monkeypatch.setattr(served.state.responses, "_max_bytes", served.state.responses._nbytes + 10_000)
    body = {"model": "fake", "input": "x", "max_output_tokens": 1, "metadata": {"note": "x" * 3000}}
    ids: list[str | None] = [None]
    for _ in range(3):
        body["previous_response_id"] = ids[-1]
        ids.append((await served.post("responses", body)).json()["id"])
    found = [(await served.http.get(f"/v1/responses/{id_}")).status_code for id_ in ids[1:]]
    assert found == [404, 404, 200]
    await served.http.delete(f"/v1/responses/{ids[-1]}")


async def test_a_failure_is_the_last_event(served: Served) -> None:
    served.runner.fails = lambda batch: True
    response = await served.post("responses", {"model": "fake", "input": "x", "stream": True})
    told = sent(response.text)
    assert [event["type"] for event in told[-2:]] == ["error", "response.failed"]
    assert [event["sequence_number"] for event in told] == list(range(len(told)))
    assert told[-2]["code"] == "internal_error"
    failed = told[-1]["response"]
    assert (failed["status"], failed["error"]["code"]) == ("failed", "server_error")
    assert failed["error"]["message"] == told[-2]["message"]
    assert (await served.http.get(f"/v1/responses/{failed['id']}")).json() == failed


async def test_one_in_the_background_that_cannot_be_kept_is_not_made(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    aborted = served.engine.stats.finished["abort"]
    monkeypatch.setattr(served.state.responses, "_max_bytes", 100)
    response = await served.post("responses", {"model": "fake", "input": "x" * 100, "background": True})
    assert error_of(response)["code"] == "response_not_found"
    assert served.engine.stats.finished["abort"] == aborted + 1


async def test_a_stream_in_the_background_goes_on_without_its_reader(
    served: Served, client: openai.AsyncOpenAI
) -> None:
    served.runner.pause()
    stream = await client.responses.create(
        model="fake", input="x", background=True, stream=True, max_output_tokens=40
    )
    first = await anext(stream)
    assert first.type == "response.created"
    await stream.close()
    served.runner.resume()
    id_ = first.response.id
    await until(lambda: served.state.responses.get(id_, "").response.status != "in_progress")
    finished = await client.responses.retrieve(id_)
    whole = [event async for event in await client.responses.retrieve(id_, stream=True)]
    assert [event.sequence_number for event in whole] == list(range(len(whole)))
    last = whole[-1]
    assert last.type == "response.incomplete"
    assert last.response == finished
    assert len(finished.output_text) == 40
    assert finished.background
    for after in (0, 3, len(whole) - 2, len(whole) - 1):
        rest = await client.responses.retrieve(id_, stream=True, starting_after=after)
        assert [event async for event in rest] == whole[after + 1 :]
    served.state.streams.close()


async def test_a_stream_in_the_background_is_gone_on_with_live(
    served: Served, client: openai.AsyncOpenAI
) -> None:
    served.runner.pause()
    stream = await client.responses.create(
        model="fake", input="x", background=True, stream=True, max_output_tokens=9
    )
    first, second = await anext(stream), await anext(stream)
    assert first.type == "response.created"
    await stream.close()
    rest = await client.responses.retrieve(
        first.response.id, stream=True, starting_after=second.sequence_number
    )
    served.runner.resume()
    events = [event async for event in rest]
    assert events[0].sequence_number == 2
    last = events[-1]
    assert last.type == "response.incomplete"
    assert len(last.response.output_text) == 9
    served.state.streams.close()


async def test_a_cancelled_stream_says_so(served: Served, client: openai.AsyncOpenAI) -> None:
    served.runner.pause()
    stream = await client.responses.create(model="fake", input="x", background=True, stream=True)
    first = await anext(stream)
    assert first.type == "response.created"
    cancelled = await client.responses.cancel(first.response.id)
    served.runner.resume()
    *_, error, last = [event async for event in stream]
    assert error.type == "error"
    assert error.code == "cancelled"
    assert last.type == "response.failed"
    assert last.response == cancelled == await client.responses.retrieve(first.response.id)
    assert cancelled.status == "cancelled"
    served.state.streams.close()


async def test_a_stream_that_is_refused_leaves_no_response(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served.state.streams, "_capacity", 0)
    before = set(served.state.responses._stored)
    body = {"model": "fake", "input": "x", "stream": True, "background": True}
    refused = await served.post("responses", body)
    assert (refused.status_code, error_of(refused)["code"]) == (429, "streams_full")
    assert set(served.state.responses._stored) == before


async def test_a_resumable_stream(served: Served) -> None:
    body = {"model": "fake", "input": "x", "stream": True, "max_output_tokens": 5}
    response = await served.post("responses", {**body, "stream_options": {"resumable": True}})
    told = sent(response.text)
    place = response.headers["content-location"]
    assert place == f"/v1/streams/{told[0]['response']['id']}"
    rest = await served.http.get(place, headers={"Last-Event-ID": "3"})
    assert sent(rest.text) == told[3:]
    served.state.streams.close()


@pytest.mark.parametrize(
    ("query", "status", "param"),
    [
        ("stream=true", 404, "id"),
        ("stream=perhaps", 400, "stream"),
        ("starting_after=2", 400, "starting_after"),
        ("stream=true&starting_after=-1", 400, "starting_after"),
        ("stream=true&starting_after=x", 400, "starting_after"),
        ("include[]=reasoning.encrypted_content", 400, "include[]"),
        ("include_obfuscation=true", 400, "include_obfuscation"),
    ],
)
async def test_a_wrong_query_is_refused_by_name(served: Served, query: str, status: int, param: str) -> None:
    kept = await served.post("responses", {"model": "fake", "input": "x", "max_output_tokens": 1})
    refused = await served.http.get(f"/v1/responses/{kept.json()['id']}?{query}")
    assert (refused.status_code, error_of(refused)["param"]) == (status, param)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"stop": "lo"}, "Hel"),
        ({"stop": ["l"], "include_stop_str_in_output": True}, "Hel"),
        ({"stop_token_ids": [ord("o")]}, "Hell"),
        ({"structured_outputs": {"choice": ["abc"]}}, "abc"),
        ({"guided_regex": "xyz"}, "xyz"),
    ],
)
async def test_what_the_chat_api_takes_beyond_openai_is_taken_here(
    served: Served, fields: dict[str, Any], text: str
) -> None:
    served.runner.script = say("Hello!")
    body = {"model": "fake", "input": "x", "temperature": 0, **fields}
    response = await served.post("responses", body)
    assert response.status_code == 200, response.text
    assert response.json()["output"][0]["content"][0]["text"] == text


async def test_sampling_reaches_the_engine(served: Served) -> None:
    drawn = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.3,
        "frequency_penalty": -0.2,
        "seed": 5,
        "min_tokens": 2,
        "ignore_eos": True,
        "skip_special_tokens": False,
        "ensure_complete": False,
    }
    others = {"logit_bias": {"113": 3.0}, "allowed_token_ids": [113, 114], "cache_salt": "a", "priority": 3}
    body = {"model": "fake", "input": "x", "max_output_tokens": 4, **drawn, **others}
    response = await served.post("responses", body)
    assert response.status_code == 200, response.text
    params = served.runner.batches[-1].samples[0].params
    assert {name: getattr(params, name) for name in drawn} == drawn
    assert (params.logit_bias, params.allowed_token_ids) == ({113: 3.0}, frozenset({113, 114}))


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
        ({"seed": 2**63}, "seed"),
        ({"top_k": 2**63}, "top_k"),
        ({"n": 2}, "n"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs"),
        ({"best_of": 2}, "best_of"),
        ({"guided_jsn": {}}, "guided_jsn"),
        ({"structured_output": {"choice": ["a"]}}, "structured_output"),
        (
            {"stream": True, "stream_options": {"include_obfuscation": True}},
            "stream_options.include_obfuscation",
        ),
        ({"stream_options": {"resumable": True}}, "stream_options"),
        ({"background": True, "store": False}, "store"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        (
            {"text": {"format": {"type": "json_schema", "name": "x", "schema": {"not": {"$ref": "#"}}}}},
            "text.format",
        ),
        (
            {
                "tools": [
                    {"type": "function", "name": "a", "parameters": {}},
                    {"type": "function", "name": "b", "parameters": {"anyOf": [{"$ref": "x"}]}},
                ],
                "tool_choice": "required",
            },
            "tools[1].parameters",
        ),
    ],
)
async def test_what_is_wrong_is_refused_by_name(served: Served, fields: dict[str, Any], param: str) -> None:
    response = await served.post("responses", {"model": "fake", "input": "x", **fields})
    assert response.status_code in (400, 404), response.text
    assert error_of(response)["param"] == param
