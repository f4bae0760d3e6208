"""What a model thinks is told apart from what it answers, however the text was cut."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.thinking import Thinking
from app.tool_calls import Calls, CallStart, Content, PlainText, Reasoning
from tests.app.harness import Served, chat_body, events
from tests.app.test_tool_calls import cuts
from tests.fakes import IM_START, say

THOUGHT = "<think>\nIs 1 < 2? </thin k>\n\n</think>\n\nYes. <think>no</think>"


def read(parts: list[str], *, begun: bool = False) -> tuple[str, str]:
    splitter = Thinking(PlainText(), begun=begun)
    pieces = [piece for part in parts for piece in splitter.feed(part)] + splitter.finish()
    thought = "".join(piece.text for piece in pieces if isinstance(piece, Reasoning))
    return thought, "".join(piece.text for piece in pieces if isinstance(piece, Content))


@pytest.mark.parametrize(
    ("text", "begun", "expected"),
    [
        (THOUGHT, False, ("Is 1 < 2? </thin k>", "Yes. <think>no</think>")),
        ("hm\n</think>\nYes.", True, ("hm", "Yes.")),
        ("  <thin air", False, ("", "  <thin air")),
        ("No thought.", False, ("", "No thought.")),
        ("<think>\n\n</think>\n\nYes.", False, ("", "Yes.")),
        ("<think>cut off </th", False, ("cut off </th", "")),
        ("<think>", False, ("", "")),
        (" \n", False, ("", " \n")),
        ("", False, ("", "")),
    ],
)
def test_thoughts(text: str, expected: tuple[str, str], *, begun: bool) -> None:
    assert read([text], begun=begun) == expected
    assert read(list(text), begun=begun) == expected


@given(st.text("<think>/ ax\n", max_size=12).flatmap(lambda text: cuts(f"<think>{text}</think> {text}b")))
def test_the_cuts_make_no_difference(parts: list[str]) -> None:
    assert read(parts) == read(["".join(parts)])


def test_calls_may_follow_thoughts() -> None:
    splitter = Thinking(Calls(frozenset({"f"})), begun=False)
    text = '<think>I call.</think>\n<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    pieces = [piece for char in text for piece in splitter.feed(char)] + splitter.finish()
    assert [piece.name for piece in pieces if isinstance(piece, CallStart)] == ["f"]
    assert not any(isinstance(piece, Content) for piece in pieces)
    assert splitter.finish_reason("stop") == "tool_calls"


async def test_both_spellings_go_out(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served.state, "thinks", True)
    served.runner.script = say("<think>\nhm, 2\n</think>\n\nYes.")
    (choice,) = (await served.chat()).json()["choices"]
    assert choice["message"]["content"] == "Yes."
    assert choice["message"]["reasoning_content"] == choice["message"]["reasoning"] == "hm, 2"
    deltas = [
        choice["delta"]
        for chunk in events((await served.chat(stream=True)).text)
        for choice in chunk["choices"]
    ]
    for name, text in (("content", "Yes."), ("reasoning_content", "hm, 2"), ("reasoning", "hm, 2")):
        assert "".join(delta.get(name, "") for delta in deltas) == text


async def test_a_prompt_may_begin_the_thought(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served.state, "thinks", True)
    served.runner.script = say("hm</think>Yes.")
    messages = [{"role": "assistant", "content": "<think>"}]
    response = await served.post(
        "chat/completions", chat_body() | {"messages": messages, "continue_final_message": True}
    )
    message = response.json()["choices"][0]["message"]
    assert (message["reasoning"], message["content"]) == ("hm", "Yes.")
    assert served.runner.batches[-1].samples[0].tokens[0] == IM_START


async def test_models_that_do_not_think_may_say_the_tag(served: Served) -> None:
    served.runner.script = say("<think>x</think>")
    message = (await served.chat()).json()["choices"][0]["message"]
    assert message == {"role": "assistant", "content": "<think>x</think>", "refusal": None}


async def test_a_constrained_answer_has_no_thoughts(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served.state, "thinks", True)
    served.runner.script = say('"<think>"')
    message = (await served.chat(guided_json={"const": "<think>"})).json()["choices"][0]["message"]
    assert message["content"] == '"<think>"'


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "fields",
    [
        {"guided_choice": ["yes", "no"]},
        {"guided_regex": "yes|no"},
        {"guided_grammar": 'root ::= "yes" | "no"'},
        {"structured_outputs": {"grammar": 'start: "yes" | "no"'}},
    ],
)
async def test_the_grammar_holds_behind_the_thought(
    served: Served, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], *, stream: bool
) -> None:
    """D7"""
    monkeypatch.setattr(served.state, "thinks", True)
    served.runner.script = say("<think>\nmaybe {1} < 2?\n</think>\nyes")
    response = await served.chat(**fields, max_tokens=90, stream=stream)
    thought, said = _parts(response, stream=stream)
    assert (thought, said) == ("maybe {1} < 2?", "yes")
    # Without a thought the grammar holds from the start.
    served.runner.script = say("no, never")
    assert _parts(await served.chat(**fields, stream=stream), stream=stream) == ("", "no")


def _parts(response: Any, *, stream: bool) -> tuple[str, str]:
    assert response.status_code == 200, response.text
    choices = [c for chunk in events(response.text) for c in chunk["choices"]] if stream else []
    messages = [c["delta"] for c in choices] if stream else [response.json()["choices"][0]["message"]]
    thought = "".join(message.get("reasoning_content") or "" for message in messages)
    return thought, "".join(message.get("content") or "" for message in messages)


@pytest.mark.parametrize("max_tokens", [20, 33, 60])
async def test_a_thought_without_end_leaves_room_for_the_answer(
    served: Served, monkeypatch: pytest.MonkeyPatch, max_tokens: int
) -> None:
    monkeypatch.setattr(served.state, "thinks", True)
    served.runner.script = say("<think>" + "hm " * 99)
    response = await served.chat(guided_json={"enum": ["yes", "no"]}, max_tokens=max_tokens)
    assert response.json()["choices"][0]["finish_reason"] == "length"
    thought, said = _parts(response, stream=False)
    assert thought
    assert ("hm " * 99).startswith(thought)
    assert said == '"no"'
    assert response.json()["usage"]["completion_tokens"] <= max_tokens


async def test_a_prompt_may_begin_the_thought_or_leave_it_out(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served.state, "thinks", True)
    served.runner.script = say("hm</think>no")
    for begin, expected in (("<think>", ("hm", "no")), ("<think>\n\n</think>\n\n", ("", "yes"))):
        messages = [{"role": "assistant", "content": begin}]
        extra = {"messages": messages, "continue_final_message": True, "guided_choice": ["yes"]}
        if begin == "<think>":
            extra["guided_choice"] = ["yes", "no"]
        assert _parts(await served.chat(**extra), stream=False) == expected


async def test_a_budget_too_small_for_thought_and_answer_is_refused(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served.state, "thinks", True)
    extra = {
        "messages": [{"role": "assistant", "content": "<think>"}],
        "continue_final_message": True,
        "guided_choice": ["yes"],
    }
    response = await served.chat(**extra, max_tokens=10)
    assert response.status_code == 400
    assert f"has {len('</think>yes')} tokens" in response.json()["error"]["message"]
    assert _parts(await served.chat(**extra, max_tokens=11), stream=False)[1] == "yes"


@pytest.mark.parametrize(
    ("text", "limit", "thought"),
    [
        ("<think>hm</think>\nYes.", 99, len("<think>hm</think>")),
        ("<think>hm, and on", 9, 9),
        ("<think>\n</think>\nYes.", 99, 0),
        ("Yes.", 99, 0),
    ],
)
async def test_the_tokens_of_a_thought_are_counted(
    served: Served, monkeypatch: pytest.MonkeyPatch, text: str, limit: int, thought: int
) -> None:
    monkeypatch.setattr(served.state, "thinks", True)
    served.runner.script = say(text)
    body = {"model": "fake", "input": "x", "max_output_tokens": limit}
    usage = (await served.post("responses", body)).json()["usage"]
    assert usage["output_tokens_details"] == {"reasoning_tokens": thought}
    assert usage["output_tokens"] == min(limit, len(text) + 1)
    *_, last = (await served.post("responses", body | {"stream": True})).text.strip().split("data: ")
    assert json.loads(last)["response"]["usage"]["output_tokens_details"] == {"reasoning_tokens": thought}


async def test_thoughts_in_the_other_apis(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served.state, "thinks", True)
    served.runner.script = say("<think>hm</think>Yes.")
    response = (await served.post("responses", {"model": "fake", "input": "x"})).json()
    assert [item["type"] for item in response["output"]] == ["reasoning", "message"]
    assert response["output"][0]["content"] == [{"type": "reasoning_text", "text": "hm"}]
    again = {"model": "fake", "input": [*response["output"], {"role": "user", "content": "y"}]}
    assert (await served.post("responses", again)).status_code == 200
    stream = (await served.post("responses", {"model": "fake", "input": "x", "stream": True})).text
    assert "event: response.reasoning_text.delta\n" in stream
    assert stream.index("response.reasoning_text.done") < stream.index("response.output_text.delta")
    body: dict[str, Any] = {"model": "fake", "max_tokens": 99, "messages": [{"role": "user", "content": "x"}]}
    message = (await served.post("messages", body)).json()
    assert message["content"] == [
        {"type": "thinking", "thinking": "hm", "signature": ""},
        {"type": "text", "text": "Yes."},
    ]
    body["messages"] += [{"role": "assistant", "content": message["content"]}, body["messages"][0]]
    assert (await served.post("messages", body)).status_code == 200
    stream = (await served.post("messages", body | {"stream": True})).text
    assert '"thinking_delta","thinking":"h' in stream
