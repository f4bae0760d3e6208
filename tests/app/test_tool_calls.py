"""Reading tool calls: what is found depends on the text alone, not on how it was cut."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.tool_calls import (
    CALL_FORMATS,
    CallArguments,
    Calls,
    CallStart,
    Content,
    NamedCall,
    PlainText,
    RequiredCalls,
    Splitter,
)

NAMES = frozenset({"f", "get_weather"})
Reading = tuple[str, list[tuple[str, str]], str]
"""Content, calls as (name, arguments), finish reason of an answer that ended by itself."""


def read(splitter: Splitter, parts: Iterable[str]) -> Reading:
    text, calls, ids = "", list[tuple[str, str]](), set[str]()
    pieces = [piece for part in parts for piece in splitter.feed(part)] + splitter.finish()
    for piece in pieces:
        match piece:
            case Content():
                assert piece.text
                text += piece.text
            case CallStart():
                assert piece.index == len(calls)
                ids.add(piece.id)
                calls.append((piece.name, ""))
            case CallArguments():
                assert piece.index == len(calls) - 1
                calls[-1] = (calls[-1][0], calls[-1][1] + piece.text)
    assert len(ids) == len(calls)
    return text, calls, splitter.finish_reason("stop")


def cuts(text: str) -> st.SearchStrategy[list[str]]:
    """Every way to cut `text` into pieces."""
    places = st.lists(st.integers(0, len(text)), max_size=8).map(sorted)
    return places.map(lambda at: [text[a:b] for a, b in zip([0, *at], [*at, len(text)], strict=True)])


ARGUMENTS = st.dictionaries(
    st.text(max_size=4),
    st.text(max_size=8) | st.integers() | st.lists(st.text(max_size=3), max_size=2),
    max_size=3,
).map(lambda value: json.dumps(value, ensure_ascii=False))
CALL = st.tuples(st.sampled_from(sorted(NAMES)), ARGUMENTS)
BLANK = st.sampled_from(["", " ", "\n", "\n  "])


@st.composite
def call_texts(draw: st.DrawFn) -> tuple[tuple[str, str], str]:
    """A call and one way to write it."""
    name, arguments = draw(CALL)
    word = draw(st.sampled_from(["arguments", "parameters"]))
    blanks = [draw(BLANK) for _ in range(6)]
    text = '{{{0}"name"{1}:{2}"{name}",{3}"{word}":{4}{arguments}{5}}}'.format(
        *blanks, name=name, word=word, arguments=arguments
    )
    return (name, arguments), text


@given(st.data(), st.lists(call_texts(), min_size=1, max_size=3), BLANK)
def test_calls_in_an_array(data: st.DataObject, calls: list[tuple[tuple[str, str], str]], blank: str) -> None:
    text = f"{blank}[{blank}" + f"{blank},{blank}".join(text for _, text in calls) + f"{blank}]{blank}"
    expected = ("", [call for call, _ in calls], "tool_calls")
    assert read(Calls(NAMES), data.draw(cuts(text))) == expected
    assert read(RequiredCalls(NAMES), data.draw(cuts(text))) == expected


@given(
    st.data(),
    st.lists(call_texts(), min_size=1, max_size=3),
    st.text(alphabet="ab <>{[\n", max_size=12),
    st.text(alphabet="ab .\n", max_size=6),
)
def test_calls_in_tags(
    data: st.DataObject, calls: list[tuple[tuple[str, str], str]], before: str, after: str
) -> None:
    text = before + "\n".join(f"<tool_call>\n{text}\n</tool_call>" for _, text in calls) + after
    content, found, reason = read(Calls(NAMES), data.draw(cuts(text)))
    assert found == [call for call, _ in calls]
    assert reason == "tool_calls"
    # Blanks around calls may go; words may not.
    assert "".join(content.split()) == "".join((before + after).split())


@given(st.data(), st.text(alphabet='<>{}[]",: \ntool_cale/nmf', max_size=40))
def test_any_text_reads_the_same_however_it_is_cut(data: st.DataObject, noise: str) -> None:
    part = st.sampled_from(
        [
            noise,
            "<tool_call>",
            "</tool_call>",
            '{"name":"f","arguments":{"x":1}}',
            '{"name":"g","arguments":{}}',
            "]",
        ]
    )
    text = "".join(data.draw(st.lists(part, max_size=6)))
    makers: list[Callable[[], Splitter]] = [
        lambda: Calls(NAMES),
        lambda: Calls(NAMES, single=True),
        lambda: RequiredCalls(NAMES),
    ]
    for make in makers:
        assert read(make(), data.draw(cuts(text))) == read(make(), [text]) == read(make(), text)


@given(st.data(), st.text(max_size=30))
def test_text_without_calls_is_content(data: st.DataObject, text: str) -> None:
    assert read(Calls(NAMES), data.draw(cuts(text))) == (text, [], "stop")
    assert read(PlainText(), data.draw(cuts(text))) == (text, [], "stop")


@pytest.mark.parametrize(
    "text",
    [
        '{"name":"unknown","arguments":{}}',
        '{"answer": {"name":"f","arguments":{}}}',
        '{"name":"f","arguments":"no object"}',
        'I would call {"name":"f","arguments":{}}',
        "a < b <tool_call",
        '<tool_call>{"name":"unknown","arguments":{}}</tool_call>',
        "[1, 2, 3]",
        "  \n",
    ],
)
def test_what_is_no_call_of_a_known_function_is_content(text: str) -> None:
    assert read(Calls(NAMES), text) == (text, [], "stop")


def test_only_the_first_call_counts_without_parallel_calls() -> None:
    call = '{"name":"f","arguments":{"a":"}"}}'
    assert read(Calls(NAMES, single=True), f"[{call},{call}] and more") == (
        "",
        [("f", '{"a":"}"}')],
        "tool_calls",
    )


@pytest.mark.parametrize("end", range(1, 40))
def test_a_required_answer_cut_short_is_no_content_and_no_tool_call_finish(end: int) -> None:
    whole = '[{"name":"f","arguments":{"a":[1,"]"]}}]'
    splitter = RequiredCalls(NAMES)
    text, calls, reason = read(splitter, whole[:end])
    assert text == ""
    assert all(name == "f" and '{"a":[1,"]"]}'.startswith(arguments) for name, arguments in calls)
    assert reason == "stop"
    assert splitter.finish_reason("length") == "length"


@given(st.data(), ARGUMENTS)
def test_a_named_call_is_all_arguments(data: st.DataObject, arguments: str) -> None:
    assert read(NamedCall("f"), data.draw(cuts(arguments))) == ("", [("f", arguments)], "stop")


def test_a_named_call_starts_even_when_nothing_was_said() -> None:
    assert read(NamedCall("f"), []) == ("", [("f", "")], "stop")


def test_ids_are_unique() -> None:
    starts: list[Any] = [NamedCall("f").finish()[0] for _ in range(100)]
    assert len({start.id for start in starts}) == 100


IN_FORMS = {
    "llama3": '<|python_tag|>{"name": "f", "parameters": {A}}; {"name": "get_weather", "parameters": {B}}',
    "mistral": '[TOOL_CALLS] [{"name": "f", "arguments": {A}}, {"name": "get_weather", "arguments": {B}}]',
    "mistral names": "[TOOL_CALLS]f[ARGS]{A}[TOOL_CALLS]get_weather[ARGS]{B}",
    "mistral without marks": "f{A}get_weather{B}",
    "llama3 without marks": '{"name": "f", "parameters": {A}}',
}


@pytest.mark.parametrize("name", IN_FORMS)
@given(data=st.data(), first=ARGUMENTS, second=ARGUMENTS)
def test_every_form_is_read_however_it_is_cut(
    name: str, data: st.DataObject, first: str, second: str
) -> None:
    text = IN_FORMS[name].replace("{A}", first).replace("{B}", second)
    form = CALL_FORMATS[name.split(maxsplit=1)[0]]
    expected = [("f", first), ("get_weather", second)][: 2 if "{B}" in IN_FORMS[name] else 1]
    assert read(Calls(NAMES, form=form), data.draw(cuts(text))) == ("", expected, "tool_calls")


@given(data=st.data(), first=ARGUMENTS, second=ARGUMENTS)
def test_hermes_reads_nothing_but_what_is_tagged(data: st.DataObject, first: str, second: str) -> None:
    bare = f'{{"name": "f", "arguments": {first}}}'
    other = f'{{"name": "get_weather", "arguments": {second}}}'
    text = f"Well. <tool_call>\n{bare}\n</tool_call>\n<tool_call>{other}</tool_call>"
    hermes = CALL_FORMATS["hermes"]
    expected = ("Well. ", [("f", first), ("get_weather", second)], "tool_calls")
    assert read(Calls(NAMES, form=hermes), data.draw(cuts(text))) == expected
    assert read(Calls(NAMES, form=hermes), data.draw(cuts(bare))) == (bare, [], "stop")


def test_mistral_reads_marked_calls_within_text_and_leaves_other_names_alone() -> None:
    mistral = CALL_FORMATS["mistral"]
    text = 'Let me see. [TOOL_CALLS]f[ARGS]{"a": 1}'
    assert read(Calls(NAMES, form=mistral), list(text)) == ("Let me see. ", [("f", '{"a": 1}')], "tool_calls")
    for text in ("f is {a: 1}", "g{}", "f"):
        assert read(Calls(NAMES, form=mistral), list(text)) == (text, [], "stop")
