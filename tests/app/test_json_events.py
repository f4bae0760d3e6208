"""Which values of a JSON text are complete, whatever pieces it comes in."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.json_events import JsonEventReader
from tests.app.harness import Served, error_of, events
from tests.fakes import say

DOCUMENTS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8"), max_size=8)
    | st.sampled_from(["/", "~", "~1", '"', "\\", "\\u", "😀", "\n", "\u2028"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.text(st.characters(codec="utf-8"), max_size=4) | st.just("a/~b"), inner, max_size=4
        )
    ),
    max_leaves=12,
)
SPELLINGS = st.sampled_from(
    [
        {"separators": (",", ":")},
        {},
        {"indent": 1},
        {"ensure_ascii": False},
        {"separators": (" ,\t", " :\r\n")},
    ]
)


def values(document: Any, pointer: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of a document and its pointer, members before their container."""
    if isinstance(document, dict):
        for key, member in document.items():
            yield from values(member, f"{pointer}/{key.replace('~', '~0').replace('/', '~1')}")
    elif isinstance(document, list):
        for index, item in enumerate(document):
            yield from values(item, f"{pointer}/{index}")
    yield pointer, document


def read(pieces: list[str]) -> list[tuple[str, Any]]:
    reader = JsonEventReader()
    found = [event for piece in pieces for event in reader.feed(piece)] + reader.end()
    return [(event.pointer, json.loads(bytes(event.value))) for event in found]


def cut(data: st.DataObject, text: str) -> list[str]:
    places = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=12)))
    return [text[start:stop] for start, stop in zip([0, *places], [*places, len(text)], strict=True)]


def replay(found: list[tuple[str, Any]]) -> Any:
    """The document, put together from its scalars and empty containers alone."""
    document: dict[str, Any] = {}
    for pointer, value in found:
        if value in ({}, []) or not isinstance(value, dict | list):
            place = document
            steps = ["", *pointer.split("/")[1:]]
            for step, after in pairwise(steps):
                place = place.setdefault(step, {})
                place.setdefault(after, {})
            place[steps[-1]] = value
    return document.get("")


def as_nested_objects(document: Any) -> Any:
    """As `replay` puts it together: arrays as objects with indices for keys, keys as pointers have them."""
    if isinstance(document, list) and document:
        return {str(index): as_nested_objects(item) for index, item in enumerate(document)}
    if isinstance(document, dict):
        return {
            key.replace("~", "~0").replace("/", "~1"): as_nested_objects(member)
            for key, member in document.items()
        }
    return document


@settings(max_examples=300, deadline=None)
@given(document=DOCUMENTS, spelling=SPELLINGS, data=st.data())
def test_events_are_the_documents_values_however_it_is_cut(
    document: Any, spelling: dict[str, Any], data: st.DataObject
) -> None:
    text = json.dumps(document, **spelling)
    expected = list(values(document))
    assert read([text]) == expected
    assert read(list(text)) == expected
    assert read(cut(data, text)) == expected
    assert replay(expected) == as_nested_objects(document)


@settings(max_examples=200, deadline=None)
@given(text=st.text(st.sampled_from('{}[],:"\\ntrue019-.eE \n'), max_size=30), data=st.data())
def test_what_is_no_json_is_read_alike_however_it_is_cut(text: str, data: st.DataObject) -> None:
    assert read(cut(data, text)) == read([text])


@pytest.mark.parametrize(
    ("pieces", "told"),
    [
        (["[1", "2", ",", "-0.5e", "+3", "]"], [[], [], ["12"], [], [], ["-0.5e+3", "[12,-0.5e+3]"]]),
        (['"a\\', '"', '"'], [[], [], ['"a\\""']]),
        (["tru", "e"], [[], ["true"]]),
        (['{"a":1', "}"], [[], ["1", '{"a":1}']]),
        (["[\n 1\n]"], [["1", "[  1 ]"]]),
        (["[-]", "1"], [[], []]),
        (["[01]"], [[]]),
        (["12345678901234567890123 "], [["12345678901234567890123"]]),
    ],
)
def test_a_value_is_told_when_it_is_certain(pieces: list[str], told: list[list[str]]) -> None:
    reader = JsonEventReader()
    assert [[bytes(e.value).decode() for e in reader.feed(piece)] for piece in pieces] == told


def test_a_number_that_is_all_of_the_text_is_certain_at_its_end() -> None:
    reader = JsonEventReader()
    assert reader.feed("12") == reader.feed("3") == []
    assert [bytes(event.value) for event in reader.end()] == [b"123"]
    cut_off = JsonEventReader()
    assert cut_off.feed("[12") == cut_off.end() == []


def test_half_a_surrogate_pair_in_a_key() -> None:
    reader = JsonEventReader()
    told = reader.feed('{"\\ud83d\\ude00\\ud800":1}')
    assert told[0].pointer == "/😀\ufffd"


TEXT = '{"a":["x~/",12],"b/c":{}}'
SCHEMA = {
    "type": "object",
    "properties": {
        "a": {
            "type": "array",
            "prefixItems": [{"type": "string", "maxLength": 4}, {"type": "integer"}],
            "items": False,
        },
        "b/c": {"type": "object", "additionalProperties": False},
    },
    "required": ["a", "b/c"],
    "additionalProperties": False,
}
TOLD = [("/a/0", "x~/"), ("/a/1", 12), ("/a", ["x~/", 12]), ("/b~1c", {}), ("", json.loads(TEXT))]
ASKED = {"stream": True, "stream_options": {"include_json_events": True}, "max_tokens": 60}
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}


def told_of(chunks: list[Any], index: int = 0) -> list[tuple[str, Any]]:
    return [
        (event["pointer"], event["value"])
        for chunk in chunks
        for choice in chunk["choices"]
        if choice["index"] == index
        for event in choice.get("json_events", ())
    ]


async def test_chat_tells_them_beside_the_delta(served: Served) -> None:
    served.runner.script = say(TEXT)
    chunks = events((await served.chat(response_format=FORMAT, n=2, **ASKED)).text)
    assert told_of(chunks) == told_of(chunks, 1) == TOLD
    text = ""
    for chunk in chunks:
        choice = chunk["choices"][0]
        if choice["index"] == 0:
            text += choice["delta"].get("content", "")
            for event in choice.get("json_events", ()):
                assert json.dumps(event["value"], separators=(",", ":")) in text
    assert text == TEXT


async def test_completions_tell_them_too(served: Served) -> None:
    served.runner.script = say(TEXT)
    chunks = events((await served.complete(guided_json=SCHEMA, echo=True, **ASKED)).text)
    assert told_of(chunks) == TOLD


async def test_a_number_alone_is_told_with_the_finish(served: Served) -> None:
    served.runner.script = say("42")
    number = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "integer"}}}
    for response in (
        await served.chat(response_format=number, **ASKED),
        await served.complete(response_format=number, **ASKED),
    ):
        *before, last = events(response.text)
        assert last["choices"][0]["finish_reason"] == "stop"
        assert (told_of(before), told_of([last])) == ([], [("", 42)])


async def test_without_being_asked_for_there_are_none(served: Served) -> None:
    served.runner.script = say(TEXT)
    chunks = events((await served.chat(response_format=FORMAT, stream=True, max_tokens=60)).text)
    assert all("json_events" not in choice for chunk in chunks for choice in chunk["choices"])


NUMBER = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "integer"}}}


async def test_a_number_that_the_budget_ends_is_told_where_it_is_ensured_to_be_whole(served: Served) -> None:
    served.runner.script = say("123456789")
    asked = {**ASKED, "max_tokens": 3, "response_format": NUMBER}
    for ask in (served.chat, served.complete):
        for fields, told in (({}, [("", 123)]), ({"ensure_complete": False}, [])):
            *before, last = events((await ask(**asked, **fields)).text)
            assert last["choices"][0]["finish_reason"] == "length"
            assert (told_of(before), told_of([last])) == ([], told)


async def test_a_number_that_a_stop_string_cuts_off_is_not_told(served: Served) -> None:
    served.runner.script = say("123456789")
    for ask in (served.chat, served.complete):
        chunks = events((await ask(response_format=NUMBER, stop="45", **ASKED)).text)
        assert (chunks[-1]["choices"][0]["stop_reason"], told_of(chunks)) == ("45", [])


def tool(name: str) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 9}, "days": {"type": "integer"}},
        "required": ["city", "days"],
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


CALLED = [{"city": "Bern", "days": 2}, {"city": "Rom", "days": 10}]


@pytest.mark.parametrize(
    ("choice", "text", "called"),
    [
        (
            "required",
            json.dumps([{"name": "f", "arguments": a} for a in CALLED], separators=(",", ":")),
            CALLED,
        ),
        ({"type": "function", "function": {"name": "f"}}, '{"city":"Bern","days":2}', CALLED[:1]),
        (
            "auto",
            '7 days? <tool_call>{"name": "f", "arguments": {"city": "Bern", "days": 2}}</tool_call>'
            '<tool_call>{"name": "f", "arguments": {"city": "Rom", "days": 10}}</tool_call>',
            CALLED,
        ),
    ],
)
async def test_values_in_the_arguments_of_calls_name_their_call(
    served: Served, choice: Any, text: str, called: list[dict[str, Any]]
) -> None:
    served.runner.script = say(text)
    asked = {**ASKED, "max_tokens": 200, "tools": [tool("f")], "tool_choice": choice}
    chunks = events((await served.chat(**asked)).text)
    told = [event for chunk in chunks for event in chunk["choices"][0].get("json_events", ())]
    assert [(event["tool_call"], event["pointer"], event["value"]) for event in told] == [
        (index, *event) for index, arguments in enumerate(called) for event in values(arguments)
    ]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"guided_regex": "[0-9]+"},
        {"tools": [tool("f")], "tool_choice": "none"},
    ],
)
async def test_text_that_nothing_makes_json_has_none(served: Served, fields: dict[str, Any]) -> None:
    refused = await served.chat(**ASKED, **fields)
    assert (refused.status_code, error_of(refused)["param"]) == (400, "stream_options.include_json_events")
