"""Constrained answers over HTTP: every spelling of a constraint, and what happens to a bad one."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest

from engine.batch import SampleRow
from grammars.spec import Constraint
from tests.app.harness import Served, chat_body, error_of, events, raw_client, serving, until
from tests.fakes import assert_quiet, say

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
GBNF = 'root ::= "x" ("ab" | "cd")'
LARK = 'start: "x" ("ab" | "cd")'


def json_schema(schema: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "it", "schema": schema, **fields}}


def text_of(response: Any) -> str:
    assert response.status_code == 200, response.text
    text: str = response.json()["choices"][0]["message"]["content"]
    return text


def streamed_text(response: Any) -> str:
    choices = [choice for chunk in events(response.text) for choice in chunk["choices"]]
    assert choices[-1]["finish_reason"] == "stop"
    return "".join(choice["delta"].get("content", "") for choice in choices)


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": json_schema(PERSON, strict=True)},
        {"response_format": json_schema(PERSON, strict=None, description="someone")},
        {"structured_outputs": {"json": PERSON}},
        {"structured_outputs": {"json": json.dumps(PERSON), "regex": None}},
        {"guided_json": PERSON},
        {"guided_json": json.dumps(PERSON)},
        {"json_schema": json.dumps(PERSON)},
    ],
)
async def test_answers_fit_the_schema_in_every_spelling(served: Served, fields: dict[str, Any]) -> None:
    response = await served.chat(**fields, n=3, max_tokens=200)
    assert response.status_code == 200, response.text
    for choice in response.json()["choices"]:
        assert choice["finish_reason"] == "stop"
        jsonschema.validate(json.loads(choice["message"]["content"]), PERSON)


@pytest.mark.parametrize(
    "fields",
    [
        {"structured_outputs": {"regex": "x(ab|cd)"}},
        {"structured_outputs": {"choice": ["xab", "xcd"]}},
        {"structured_outputs": {"grammar": GBNF}},
        {"structured_outputs": {"grammar": LARK}},
        {"guided_regex": "x(ab|cd)"},
        {"guided_choice": ["xab", "xcd"]},
        {"guided_grammar": GBNF},
        {"regex": "x(ab|cd)"},
        {"ebnf": GBNF},
        {"grammar": GBNF},
    ],
)
async def test_answers_fit_other_constraints_in_every_spelling(
    served: Served, fields: dict[str, Any]
) -> None:
    assert text_of(await served.chat(**fields)) in ("xab", "xcd")
    completion = (await served.complete(**fields)).json()["choices"][0]
    assert completion["text"] in ("xab", "xcd")
    assert completion["finish_reason"] == "stop"


async def test_a_json_object(served: Served) -> None:
    served.runner.script = lambda row: b'{"a":[1,2]}'[row.position - row.num_prompt]
    fields: list[dict[str, Any]] = [
        {"response_format": {"type": "json_object"}},
        {"structured_outputs": {"json_object": True}},
    ]
    for field in fields:
        assert text_of(await served.chat(**field)) == '{"a":[1,2]}'


async def test_whitespace_is_compact_unless_asked_for(served: Served) -> None:
    served.runner.script = lambda row: b'{\n "a": 1\n}\n\n\n\n\n\n'[row.position - row.num_prompt]
    schema = {
        "type": "object",
        "properties": {"a": {"const": 1}},
        "required": ["a"],
        "additionalProperties": False,
    }
    for flags, pattern in (({}, r'\{"a":1\}'), ({"disable_any_whitespace": False}, r'\{\n "a": 1\n\}')):
        text = text_of(await served.chat(structured_outputs={"json": schema, **flags}, max_tokens=40))
        assert re.fullmatch(pattern, text)


async def test_whitespace_follows_a_pattern(served: Served) -> None:
    served.runner.script = lambda row: b'{ "a": 1 }      '[row.position - row.num_prompt]
    schema = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}
    closed = {**schema, "additionalProperties": False}
    for fields in (
        {"structured_outputs": {"json": closed, "whitespace_pattern": "[ ]?"}},
        {"guided_json": closed, "guided_whitespace_pattern": "[ ]?"},
    ):
        assert text_of(await served.chat(**fields, max_tokens=40)) == '{ "a": 1 }'


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"structured_outputs": {"json": {}, "whitespace_pattern": " +"}}, "structured_outputs", "beginning"),
        (
            {"structured_outputs": {"json": {}, "whitespace_pattern": 1}},
            "structured_outputs.whitespace_pattern",
            "str",
        ),
        (
            {"structured_outputs": {"json": {}, "whitespace_pattern": " ?", "disable_any_whitespace": True}},
            "structured_outputs.whitespace_pattern",
            "says nothing beside",
        ),
        ({"guided_whitespace_pattern": " ?"}, "guided_whitespace_pattern", "says nothing without"),
    ],
)
async def test_a_pattern_of_blanks_that_cannot_be_kept_is_refused(
    served: Served, fields: dict[str, Any], param: str, message: str
) -> None:
    response = await served.chat(**fields)
    assert response.status_code == 400
    assert error_of(response)["param"] == param
    assert message in error_of(response)["message"]


async def test_the_streamed_answer_fits(served: Served) -> None:
    response = await served.chat(response_format=json_schema(PERSON), stream=True)
    jsonschema.validate(json.loads(streamed_text(response)), PERSON)


@pytest.mark.parametrize("max_tokens", [40, 60])
async def test_an_answer_that_runs_out_of_budget_is_whole(served: Served, max_tokens: int) -> None:
    served.runner.script = lambda row: ord("x")
    endless = {**PERSON, "properties": {**PERSON["properties"], "name": {"type": "string"}}}
    body = (await served.chat(response_format=json_schema(endless), max_tokens=max_tokens)).json()
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] <= max_tokens
    jsonschema.validate(json.loads(body["choices"][0]["message"]["content"]), endless)


async def test_a_budget_too_small_for_any_answer_is_refused(served: Served) -> None:
    response = await served.chat(response_format=json_schema(PERSON), max_tokens=3)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "max_tokens"
    least = len('{"name":"","age":0,"tags":[]}')
    assert f"has {least} tokens, but only 3 are allowed" in response.json()["error"]["message"]


async def test_an_answer_may_be_cut_short_where_that_is_wanted(served: Served) -> None:
    script = b'{"name":"bo","age":7,"tags":[]}'
    served.runner.script = lambda row: script[row.position - row.num_prompt]
    fields = {"response_format": json_schema(PERSON), "max_tokens": 12, "ensure_complete": False}
    body = (await served.chat(**fields)).json()
    assert body["choices"][0]["finish_reason"] == "length"
    assert script.decode().startswith(body["choices"][0]["message"]["content"])


async def test_constrained_and_free_requests_run_side_by_side(served: Served) -> None:
    free = (await served.complete("free", max_tokens=30)).json()["choices"][0]["text"]
    answers = await asyncio.gather(
        *(served.chat(f"{i}", response_format=json_schema(PERSON)) for i in range(12)),
        *(served.complete("free", max_tokens=30) for _ in range(4)),
    )
    for answer in answers[:12]:
        jsonschema.validate(json.loads(text_of(answer)), PERSON)
    assert [answer.json()["choices"][0]["text"] for answer in answers[12:]] == [free] * 4


def _schema(index: int) -> dict[str, Any]:
    """One of many schemas that differ in names and types."""
    member = [
        PERSON["properties"]["name"],
        {"type": "integer", "maximum": 9 * 10**index},
        {"enum": [index, None]},
    ]
    return {
        "type": "object",
        "properties": {
            f"field{index}": member[index % 3],
            "list": {"type": "array", "items": PERSON, "maxItems": 1},
        },
        "required": [f"field{index}", "list"],
        "additionalProperties": False,
    }


async def test_a_hundred_at_once_with_ten_schemas() -> None:
    """Every finished answer parses and validates."""
    schemas = [_schema(index % 10) for index in range(100)]
    async with serving(num_pages=8192, max_batch_tokens=512) as served:
        answers = await asyncio.gather(
            *(
                served.chat(
                    f"{index}", response_format=json_schema(schema), max_tokens=400, stream=index % 2 == 0
                )
                for index, schema in enumerate(schemas)
            )
        )
        assert_quiet(served.engine)
    for index, (answer, schema) in enumerate(zip(answers, schemas, strict=True)):
        text = streamed_text(answer) if index % 2 == 0 else text_of(answer)
        jsonschema.validate(json.loads(text), schema)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": json_schema({"type": "string", "pattern": "("})}, "response_format"),
        (
            {"response_format": json_schema({"type": "string", "pattern": r"(a)\1"})},
            "response_format",
        ),
        ({"response_format": json_schema({"$ref": "#/nowhere"})}, "response_format"),
        ({"response_format": json_schema(False)}, "response_format"),
        ({"guided_json": "no json"}, "guided_json"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs"),
        ({"guided_grammar": "root ::= ("}, "guided_grammar"),
        ({"guided_choice": []}, "guided_choice"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}]},
            "tools[0].function.parameters",
        ),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_what_cannot_be_enforced_is_refused(
    served: Served, fields: dict[str, Any], param: str, *, stream: bool
) -> None:
    """A42: never unconstrained text instead."""
    if "tools" in fields:
        fields = {**fields, "tool_choice": "required"}
    response = await served.chat(**fields, stream=stream)
    assert response.status_code == 400
    assert error_of(response)["param"] == param


@pytest.mark.parametrize(
    ("field", "known"),
    [
        ("guided_jsonn", "guided_json"),
        ("grammer", "grammar"),
        ("structured_output", "structured_outputs"),
        ("guided_backend_options", None),
        ("response_schema", None),
        ("format", None),
    ],
)
async def test_a_field_that_only_looks_like_a_constraint_is_refused(
    served: Served, field: str, known: str | None
) -> None:
    """F7: not ignored, nor answered with free text; what does not look like one is."""
    for response in (await served.chat(**{field: PERSON}), await served.complete(**{field: PERSON})):
        assert response.status_code == 400
        error = error_of(response)
        assert error["param"] == field
        assert error["message"].endswith(f"Is it {known!r}?" if known else "is not supported.")
        assert error["code"] == "unsupported_parameter"
    assert (await served.chat(**{field: None, "future_field": 1}, max_tokens=1)).status_code == 200


async def test_stop_strings_end_constrained_text_but_not_the_thought(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C6"""
    monkeypatch.setattr(served.state, "thinks", True)
    served.runner.script = say("<think>\na } b\n</think>\n" + '{"name":"bo}","age":7,"tags":[]}')
    fields: dict[str, Any] = {"response_format": json_schema(PERSON), "max_tokens": 120}
    for stop, expected in (("}", '{"name":"bo'), (",", '{"name":"bo}"'), ("zz", None)):
        choice = (await served.chat(**fields, stop=[stop])).json()["choices"][0]
        assert choice["finish_reason"] == "stop"
        assert choice["message"]["reasoning_content"] == "a } b"
        assert choice["message"]["content"] == (expected or '{"name":"bo}","age":7,"tags":[]}')


async def test_a_refused_keyword_is_named(served: Served) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": r"(a)\1"}}}
    message = error_of(await served.chat(response_format=json_schema(schema)))["message"]
    assert "backreferences" in message
    assert "/properties/a/pattern" in message


def prefer(char: str) -> Callable[[SampleRow], int | None]:
    """A script of nothing but one character, where it is allowed."""
    return lambda row: ord(char)


async def test_a_model_that_wants_to_go_on_for_ever_is_held_to_an_end(served: Served) -> None:
    """A43, A44: one that prefers a blank, or a digit, to everything else."""
    anything = json_schema({})
    served.runner.script = prefer("9")
    choice = (await served.chat(response_format=anything, max_tokens=500)).json()["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert re.fullmatch(r"9{20}(\.9{1,20})?([eE][+-]?[0-9]{1,3})?", choice["message"]["content"])
    for blank in " \n\t":
        served.runner.script = prefer(blank)
        choice = (await served.chat(response_format=json_schema(PERSON), max_tokens=500)).json()["choices"][0]
        assert choice["finish_reason"] == "stop"
        jsonschema.validate(json.loads(choice["message"]["content"]), PERSON)
        loose = {"json": PERSON, "disable_any_whitespace": False}
        choice = (await served.chat(structured_outputs=loose, max_tokens=2000)).json()["choices"][0]
        assert choice["finish_reason"] == "stop"
        jsonschema.validate(json.loads(choice["message"]["content"]), PERSON)
        assert "\n" + " " * 33 not in choice["message"]["content"]


async def test_the_digits_of_numbers_are_bounded_as_asked(served: Served) -> None:
    served.runner.script = prefer("9")
    asked = {"json": {"type": "number"}, "integer_digits": 3, "fraction_digits": 2}
    text = text_of(await served.chat(structured_outputs=asked, max_tokens=100))
    assert re.fullmatch(r"999(\.9{1,2})?([eE][+-]?[0-9]{1,3})?", text)
    for digits in (0, 101, "3", True):
        response = await served.chat(structured_outputs=asked | {"fraction_digits": digits})
        assert response.status_code == 400
        assert error_of(response)["param"] == "structured_outputs.fraction_digits"


async def test_compiling_holds_up_nobody_and_ends_with_its_client(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A41"""
    compiling, left = asyncio.Event(), asyncio.Event()

    async def compile_for_ever(constraint: Constraint, **whose: str) -> None:
        compiling.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            left.set()

    monkeypatch.setattr(served.engine.compiler, "compile", compile_for_ever)
    started = served.engine.stats.started
    async with raw_client(served) as client:
        client.post("chat/completions", chat_body(response_format=json_schema(PERSON)))
        await compiling.wait()
        assert (await served.http.get("/health")).status_code == 200
        assert (await served.complete(max_tokens=30)).status_code == 200
        await client.hang_up()
        await until(left.is_set)
    assert served.engine.stats.started == started + 1
    monkeypatch.undo()
