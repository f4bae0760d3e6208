"""Budgets of constrained answers: one that is too small is refused with the number needed, in every API."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import pytest

from tests.app.harness import Served, error_of

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 10}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
SHORTEST = '{"name":"","age":10}'
FUNCTION = {"name": "person", "parameters": SCHEMA}
TOOL = {"type": "function", "function": FUNCTION}
FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
CALL = f'[{{"name":"person","arguments":{SHORTEST}}}]'
MESSAGES = [{"role": "user", "content": "hi"}]
ANTHROPIC_TOOL = {"name": "person", "input_schema": SCHEMA}

Case = tuple[str, dict[str, Any], str, str]
CASES: list[Case] = [
    ("chat/completions", {"messages": MESSAGES, "response_format": FORMAT}, "max_tokens", SHORTEST),
    (
        "chat/completions",
        {"messages": MESSAGES, "response_format": FORMAT},
        "max_completion_tokens",
        SHORTEST,
    ),
    ("chat/completions", {"messages": MESSAGES, "guided_json": SCHEMA}, "max_tokens", SHORTEST),
    ("chat/completions", {"messages": MESSAGES, "guided_choice": ["abc", "abcde"]}, "max_tokens", "abc"),
    ("chat/completions", {"messages": MESSAGES, "guided_regex": "a{7,}"}, "max_tokens", "aaaaaaa"),
    ("completions", {"prompt": "hi", "guided_json": SCHEMA}, "max_tokens", SHORTEST),
    ("completions", {"prompt": "hi", "response_format": FORMAT}, "max_tokens", SHORTEST),
    (
        "responses",
        {"input": "hi", "text": {"format": {"type": "json_schema", "name": "person", "schema": SCHEMA}}},
        "max_output_tokens",
        SHORTEST,
    ),
    (
        "chat/completions",
        {"messages": MESSAGES, "tools": [TOOL], "tool_choice": "required"},
        "max_tokens",
        CALL,
    ),
    (
        "chat/completions",
        {
            "messages": MESSAGES,
            "tools": [TOOL],
            "tool_choice": {"type": "function", "function": {"name": "person"}},
        },
        "max_completion_tokens",
        SHORTEST,
    ),
    (
        "responses",
        {"input": "hi", "tools": [{"type": "function", **FUNCTION}], "tool_choice": "required"},
        "max_output_tokens",
        CALL,
    ),
    (
        "messages",
        {"messages": MESSAGES, "tools": [ANTHROPIC_TOOL], "tool_choice": {"type": "any"}},
        "max_tokens",
        CALL,
    ),
]


@pytest.mark.parametrize(("path", "body", "field", "shortest"), CASES)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_budget_that_is_too_small_is_refused_with_the_number_needed(
    served: Served, path: str, body: dict[str, Any], field: str, shortest: str, *, stream: bool
) -> None:
    """A token of the fake model is a byte."""
    least = len(shortest)
    asked = {"model": "fake", "stream": stream, **body}
    refused = await served.post(path, {**asked, field: least - 1})
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert f"has {least} tokens, but only {least - 1} are allowed" in error["message"]
    if path != "messages":
        assert error_of(refused)["param"] == field
    taken = await served.post(path, {**asked, field: least})
    assert taken.status_code == 200
    assert _holds(taken.text, shortest)


def _holds(text: str, shortest: str) -> bool:
    """Whether an answer has the shortest text, in pieces or not: a text, a call's arguments, or JSON."""
    pieces = re.findall(r'"(?:content|text|delta|arguments|partial_json)":"((?:[^"\\]|\\.)*)"', text)
    said = "".join(json.loads(f'"{piece}"') for piece in pieces)
    wanted = SHORTEST if shortest == CALL else shortest
    return wanted in said or wanted in text


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
async def test_answers_are_cut_off_where_that_is_asked_for(served: Served, path: str) -> None:
    script = b'{"name":"someone with a long name"'
    served.runner.script = lambda row: script[row.position - row.num_prompt]
    own = {"messages": MESSAGES} if path == "chat/completions" else {"prompt": "hi"}
    for max_tokens in (1, 3, 12, 25):
        body = {"model": "fake", **own, "response_format": FORMAT, "max_tokens": max_tokens}
        choice = (await served.post(path, {**body, "ensure_complete": False})).json()["choices"][0]
        text = choice["message"]["content"] if path == "chat/completions" else choice["text"]
        assert (text, choice["finish_reason"]) == (script[:max_tokens].decode(), "length")


@pytest.mark.parametrize("max_tokens", [20, 21, 25, 33])
async def test_else_they_are_whole(served: Served, max_tokens: int) -> None:
    script = b'{"name":"someone with a long name and more"'
    served.runner.script = lambda row: script[row.position - row.num_prompt]
    body = (await served.chat(response_format=FORMAT, max_tokens=max_tokens)).json()
    text = body["choices"][0]["message"]["content"]
    jsonschema.validate(json.loads(text), SCHEMA)
    assert body["choices"][0]["finish_reason"] == "length"
    assert len(text) == body["usage"]["completion_tokens"] == max_tokens
