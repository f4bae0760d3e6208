"""Tools: what an answer that must call one is constrained to.

`named`: the text is the function's arguments and nothing else. `required`: the text is a JSON array of
`{"name": …, "arguments": …}`, one object a call. `auto`: the text is free; see `app.tool_calls` for how a
call is told from text, and a call's arguments are what the model wrote. `none`: the model is not even
shown the tools.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from app.errors import bad_request
from app.protocol import ChatRequest, NamedToolChoice, Tool
from app.structured import FieldConstraint, text_constraint
from app.tool_calls import JSON_CALLS, CallFormat, Calls, NamedCall, PlainText, RequiredCalls, Splitter
from grammars.spec import Constraint, Start

MAX_CALLS = 16
"""Most calls of one `required` answer; without a bound a weak model could go on for ever."""

_PART = re.compile(r"/(?:\$defs|items/anyOf)/(\d+)")
_NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}
_DATA_KEYWORDS = frozenset({"const", "enum", "default", "examples"})
_MAP_KEYWORDS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_TYPING_KEYWORDS = frozenset({"type", "$ref", "anyOf", "oneOf", "allOf", "enum", "const"})


@dataclass(frozen=True, slots=True)
class AnswerPlan:
    """How an answer is made and read."""

    tools: list[dict[str, Any]]
    """What the chat template shows the model."""
    constraint: FieldConstraint | None
    splitter: Callable[[], Splitter]
    """Makes the reader of one choice's text."""


def plan_answer(request: ChatRequest, form: CallFormat = JSON_CALLS) -> AnswerPlan:
    """Decide from `tools`, `tool_choice` and the text constraints.

    Args:
        form: how the model writes calls that nothing forces it to.

    Raises:
        ApiError: 400; they contradict each other or are malformed.
    """
    tools = request.tools or []
    choice = request.tool_choice or "auto"
    text = text_constraint(request)
    _check_names(tools, choice)
    if not tools or choice == "none":
        return AnswerPlan([], text, PlainText)
    _check_constraint(text, choice)
    names = frozenset(tool.function.name for tool in tools)
    single = request.parallel_tool_calls is False
    shown = [_shown(tool) for tool in tools]
    match choice:
        case "required":
            constraint = msgspec.structs.replace(
                Constraint.json_schema(_array_schema(tools, 1 if single else MAX_CALLS)),
                starts=tuple(map(_start, tools, range(len(tools)))),
            )
            wanted = FieldConstraint("tools", constraint, _place)
            return AnswerPlan(shown, wanted, lambda: RequiredCalls(names))
        case NamedToolChoice(function=named):
            index = [tool.function.name for tool in tools].index(named.name)
            constraint = Constraint.json_schema(_parameters(tools[index].function.parameters, index))
            wanted = FieldConstraint(_field(index), constraint)
            return AnswerPlan(shown, wanted, lambda: NamedCall(named.name))
        case _:
            return AnswerPlan(shown, None, lambda: Calls(names, single=single, form=form))


def _check_names(tools: list[Tool], choice: str | NamedToolChoice) -> None:
    names = [tool.function.name for tool in tools]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise bad_request(f"Two tools are named {name!r}.", f"tools[{index}].function.name")
    if choice == "required" and not tools:
        raise bad_request("tool_choice 'required' needs tools.", "tool_choice")
    if isinstance(choice, NamedToolChoice) and choice.function.name not in names:
        name = choice.function.name
        raise bad_request(f"tool_choice names {name!r}, which is not in tools.", "tool_choice")


def _check_constraint(text: FieldConstraint | None, choice: str | NamedToolChoice) -> None:
    """An answer that must be a call has no text for `response_format` to hold for; any other constraint
    is on the very tokens that the call needs."""
    if text is None or (choice != "auto" and text.field == "response_format"):
        return
    raise bad_request(
        f"{text.field} cannot be combined with tools that may be called; tool_choice 'none' can be.",
        "tool_choice",
    )


def _shown(tool: Tool) -> dict[str, Any]:
    """A tool as chat templates expect it: in the customary order, absent fields absent."""
    function = tool.function
    fields = {"name": function.name, "description": function.description, "parameters": function.parameters}
    return {
        "type": "function",
        "function": {name: value for name, value in fields.items() if value is not None},
    }


def _array_schema(tools: list[Tool], max_calls: int) -> dict[str, Any]:
    """The schema of an array of calls. Each tool's parameters keep a root of their own under `$defs`."""
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": tool.function.name}, "arguments": {"$ref": f"#/$defs/{index}"}},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for index, tool in enumerate(tools)
    ]
    definitions = {
        str(index): _rebase(_parameters(tool.function.parameters, index), f"#/$defs/{index}")
        for index, tool in enumerate(tools)
    }
    return {
        "type": "array",
        "minItems": 1,
        "maxItems": max_calls,
        "items": {"anyOf": calls},
        "$defs": definitions,
    }


def _start(tool: Tool, index: int) -> Start:
    """What an array of calls begins with, up to the arguments of a first one."""
    name = msgspec.json.encode(tool.function.name).decode()
    return Start(f'[{{"name":{name},"arguments":', f"/$defs/{index}")


def _place(pointer: str) -> tuple[str, str] | None:
    """The tool that a part of the schema of an array of calls is of, and where in its parameters it is."""
    match = _PART.match(pointer)
    if match is None:
        return None
    return _field(int(match[1])), pointer[match.end() :] if pointer.startswith("/$defs") else ""


def _field(index: int) -> str:
    return f"tools[{index}].function.parameters"


def _parameters(schema: dict[str, Any] | None, index: int) -> dict[str, Any]:
    """The schema of a function's arguments, which are an object even if it does not say so."""
    if schema is None:
        return _NO_PARAMETERS
    if schema.get("type", "object") != "object":
        raise bad_request("The parameters of a function must be an object.", _field(index))
    return schema if _TYPING_KEYWORDS & schema.keys() else {"type": "object", **schema}


def _rebase(schema: Any, root: str) -> Any:
    """`schema` with its local references pointing below `root`; data inside it is left alone."""
    if isinstance(schema, list):
        return [_rebase(item, root) for item in schema]
    if not isinstance(schema, dict):
        return schema
    rebased: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "$ref" and isinstance(value, str) and value.startswith("#"):
            rebased[key] = root + value[1:]
        elif key in _DATA_KEYWORDS:
            rebased[key] = value
        elif key in _MAP_KEYWORDS and isinstance(value, dict):
            rebased[key] = {name: _rebase(member, root) for name, member in value.items()}
        else:
            rebased[key] = _rebase(value, root)
    return rebased
