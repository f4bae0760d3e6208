"""Tools over HTTP: what the model is shown, what its answer may be, and how calls go back."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from openai.types.chat import ChatCompletionToolParam

from tests.app.harness import Served, error_of, events
from tests.fakes import say

WEATHER: ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather at a place.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 6}, "days": {"enum": [1, 2]}},
            "required": ["city"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}
TREE: ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "plant",
        "parameters": {
            "type": "object",
            "properties": {"root": {"$ref": "#/$defs/Node"}, "$ref": {"enum": ["#/$defs/Node"]}},
            "required": ["root"],
            "additionalProperties": False,
            "$defs": {
                "Node": {
                    "type": "object",
                    "properties": {"child": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]}},
                    "required": ["child"],
                    "additionalProperties": False,
                }
            },
        },
    },
}
TOOLS: list[Any] = [WEATHER, TREE]
PARAMETERS = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}
NAMED = {"type": "function", "function": {"name": "get_weather"}}
BERN = '{"city":"Bern","days":2}'
OAK = '{"root":{"child":null}}'
CALLS = f'[{{"name":"get_weather","arguments":{BERN}}},{{"name":"plant","arguments":{OAK}}}]'


def folded(text: str) -> tuple[str, list[dict[str, Any]], list[str]]:
    """Content, calls and finish reasons of choice 0, put together as clients do; checks the deltas' form."""
    content, calls, finishes = "", list[dict[str, Any]](), []
    for chunk in events(text):
        (choice,) = chunk["choices"]
        content += choice["delta"].get("content", "")
        for call in choice["delta"].get("tool_calls", ()):
            if "id" in call:
                assert call["index"] == len(calls)
                assert set(call) == {"index", "id", "type", "function"}
                assert call["function"]["arguments"] == ""
                calls.append({"id": call["id"], "name": call["function"]["name"], "arguments": ""})
            else:
                assert call["index"] == len(calls) - 1
                assert set(call) == {"index", "function"}
                assert set(call["function"]) == {"arguments"}
                calls[-1]["arguments"] += call["function"]["arguments"]
        if choice["finish_reason"]:
            finishes.append(choice["finish_reason"])
            assert choice["delta"] == {}
    return content, calls, finishes


async def test_required_calls(served: Served) -> None:
    served.runner.script = say(CALLS)
    choice = (await served.chat(tools=TOOLS, tool_choice="required")).json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    first, second = choice["message"]["tool_calls"]
    assert first["type"] == "function"
    assert first["function"] == {"name": "get_weather", "arguments": BERN}
    assert second["function"] == {"name": "plant", "arguments": OAK}
    assert first["id"] != second["id"]


async def test_streamed_required_calls(served: Served) -> None:
    served.runner.script = say(CALLS)
    response = await served.chat(tools=TOOLS, tool_choice="required", stream=True)
    content, calls, finishes = folded(response.text)
    assert content == ""
    assert [(call["name"], call["arguments"]) for call in calls] == [
        ("get_weather", BERN),
        ("plant", OAK),
    ]
    assert finishes == ["tool_calls"]


@pytest.mark.parametrize("seed", range(6))
async def test_required_calls_are_always_valid(served: Served, seed: int) -> None:
    """Whatever the model would say: here it says one of the tokens that are allowed."""
    fields = {"tools": TOOLS, "tool_choice": "required", "max_tokens": 1500}
    choice = (await served.chat(f"{seed}", **fields)).json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    for call in choice["message"]["tool_calls"]:
        jsonschema.validate(json.loads(call["function"]["arguments"]), PARAMETERS[call["function"]["name"]])


async def test_one_call_at_most_without_parallel_calls(served: Served) -> None:
    served.runner.script = say(CALLS)
    for choice in ("required", "auto"):
        response = await served.chat(tools=TOOLS, tool_choice=choice, parallel_tool_calls=False)
        (call,) = response.json()["choices"][0]["message"]["tool_calls"]
        assert call["function"] == {"name": "get_weather", "arguments": BERN}


async def test_a_named_call(served: Served) -> None:
    served.runner.script = say(BERN)
    choice = (await served.chat(tools=TOOLS, tool_choice=NAMED)).json()["choices"][0]
    (call,) = choice["message"]["tool_calls"]
    assert call["function"] == {"name": "get_weather", "arguments": BERN}
    assert choice["finish_reason"] == "stop"
    content, calls, finishes = folded((await served.chat(tools=TOOLS, tool_choice=NAMED, stream=True)).text)
    assert (content, calls[0]["name"], calls[0]["arguments"]) == ("", "get_weather", BERN)
    assert finishes == ["stop"]


async def test_a_function_without_parameters_takes_none(served: Served) -> None:
    tools = [{"type": "function", "function": {"name": "get_weather"}}]
    choice = (await served.chat(tools=tools, tool_choice=NAMED)).json()["choices"][0]
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == "{}"


@pytest.mark.parametrize("tool_choice", ["required", NAMED])
async def test_calls_cut_short_finish_by_length(served: Served, tool_choice: Any) -> None:
    served.runner.script = say(CALLS if tool_choice == "required" else BERN)
    fields = {
        "tools": TOOLS,
        "tool_choice": tool_choice,
        "max_tokens": 45 if tool_choice == "required" else 9,
        "ensure_complete": False,
    }
    choice = (await served.chat(**fields)).json()["choices"][0]
    assert choice["finish_reason"] == "length"
    (call,) = choice["message"]["tool_calls"]
    assert BERN.startswith(call["function"]["arguments"])
    assert call["function"]["arguments"] not in ("", BERN)


@pytest.mark.parametrize("tool_choice", ["auto", None])
@pytest.mark.parametrize(
    "said",
    [
        CALLS,
        "<tool_call>\n"
        + CALLS[1:-1].replace('},{"name', '}\n</tool_call>\n<tool_call>\n{"name')
        + "\n</tool_call>",
    ],
)
async def test_the_model_may_call(served: Served, said: str, tool_choice: str | None) -> None:
    served.runner.script = say(said)
    fields = {"tools": TOOLS, "tool_choice": tool_choice}
    choice = (await served.chat(**fields)).json()["choices"][0]
    assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == ["get_weather", "plant"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (None, "tool_calls")
    _, calls, finishes = folded((await served.chat(**fields, stream=True)).text)
    assert [call["arguments"] for call in calls] == [BERN, OAK]
    assert finishes == ["tool_calls"]


@pytest.mark.parametrize("said", ["It rains.", '{"name": "unknown", "arguments": {}}', "<tool", '[{"name":'])
async def test_the_model_may_answer_with_text(served: Served, said: str) -> None:
    served.runner.script = say(said)
    choice = (await served.chat(tools=TOOLS)).json()["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": said, "refusal": None}
    assert choice["finish_reason"] == "stop"
    content, calls, finishes = folded((await served.chat(tools=TOOLS, stream=True)).text)
    assert (content, calls, finishes) == (said, [], ["stop"])


async def test_a_format_for_text_says_nothing_about_calls(served: Served) -> None:
    response_format = {"type": "json_object"}
    served.runner.script = say(BERN)
    for tool_choice in (NAMED, "none"):
        fields = {"tools": TOOLS, "tool_choice": tool_choice, "response_format": response_format}
        message = (await served.chat(**fields)).json()["choices"][0]["message"]
        calls = message.get("tool_calls", ())
        assert [call["function"]["arguments"] for call in calls] == ([BERN] if tool_choice == NAMED else [])
        assert message["content"] == (None if tool_choice == NAMED else BERN)


async def test_choices_are_read_apart(served: Served) -> None:
    served.runner.script = say(CALLS, "It rains.")
    first, second = (await served.chat(tools=TOOLS, n=2)).json()["choices"]
    assert len(first["message"]["tool_calls"]) == 2
    assert second["message"]["content"] == "It rains."


async def test_tools_are_shown_to_the_model_unless_it_may_not_call(served: Served) -> None:
    async def prompt_tokens(**fields: Any) -> int:
        response = await served.chat(**fields, max_tokens=1)
        tokens: int = response.json()["usage"]["prompt_tokens"]
        return tokens

    plain = await prompt_tokens()
    assert await prompt_tokens(tools=TOOLS, tool_choice="none") == plain
    assert await prompt_tokens(tools=[]) == plain
    assert await prompt_tokens(tools=TOOLS) > plain + len(json.dumps(PARAMETERS))


async def test_logprobs_of_calls_are_all_there(served: Served) -> None:
    served.runner.script = say(BERN)
    fields = {"tools": TOOLS, "tool_choice": NAMED, "logprobs": True}
    whole = (await served.chat(**fields)).json()["choices"][0]["logprobs"]["content"]
    chunks = events((await served.chat(**fields, stream=True)).text)
    streamed = [e for c in chunks for e in c["choices"][0].get("logprobs", {}).get("content", ())]
    assert streamed == whole
    assert "".join(entry["token"] for entry in whole).startswith(BERN)


async def test_a_schema_in_a_tool_that_cannot_be_enforced_is_refused(served: Served) -> None:
    bad = {"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}, "required": ["a"]}
    tools = [{"type": "function", "function": {"name": "get_weather", "parameters": bad}}]
    for tool_choice in ("required", NAMED):
        response = await served.chat(tools=tools, tool_choice=tool_choice)
        assert response.status_code == 400
        assert error_of(response)["param"] == "tools[0].function.parameters"
        assert error_of(response)["message"] == "pattern: a group does not end (at /properties/a/pattern)"


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (
            {"type": "integer", "minimum": 5, "maximum": 3},
            "maximum: no value satisfies the schema (at {}/maximum)",
        ),
        (False, "properties: no value satisfies the schema (at {})"),
        ({"$ref": "#"}, "$ref: no value satisfies the schema (at {}/$ref)"),
    ],
)
async def test_a_tool_that_could_never_be_called_is_refused(
    served: Served, wanted: Any, message: str
) -> None:
    """Beside others that could it would never come, and nobody would know why."""
    bad = {"type": "object", "properties": {"b": wanted}, "required": ["b"]}
    tools = [*TOOLS, {"type": "function", "function": {"name": "never", "parameters": bad}}]
    response = await served.chat(tools=tools, tool_choice="required")
    assert response.status_code == 400
    assert error_of(response)["param"] == f"tools[{len(TOOLS)}].function.parameters"
    assert error_of(response)["message"] == message.format("/properties/b")
