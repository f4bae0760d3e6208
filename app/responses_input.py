"""The input of POST /v1/responses as a conversation of the chat API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from app.errors import bad_request
from app.messages import (
    AssistantMessage,
    DeveloperMessage,
    FunctionCall,
    Message,
    SystemMessage,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from app.responses_wire import CallItem, Item, MessageItem, ReasoningItem


class _InputText(msgspec.Struct, tag_field="type", tag="input_text"):
    text: str


class _OutputText(msgspec.Struct, tag_field="type", tag="output_text"):
    text: str


class _Refusal(msgspec.Struct, tag_field="type", tag="refusal"):
    refusal: str


_Content = str | list[_InputText | _OutputText | _Refusal]


class _MessageInput(msgspec.Struct):
    role: Literal["user", "assistant", "system", "developer"]
    content: _Content


class _CallInput(msgspec.Struct):
    call_id: str
    name: str
    arguments: str


class _CallOutput(msgspec.Struct):
    call_id: str
    output: _Content


_ITEMS: dict[str, type[_MessageInput | _CallInput | _CallOutput]] = {
    "message": _MessageInput,
    "function_call": _CallInput,
    "function_call_output": _CallOutput,
}
_ROLES: dict[str, Callable[[str], Message]] = {
    "user": UserMessage,
    "assistant": AssistantMessage,
    "system": SystemMessage,
    "developer": DeveloperMessage,
}


def messages_of(given: str | list[dict[str, Any]]) -> list[Message]:
    """The messages of an input.

    Raises:
        ApiError: 400, naming the item and field.
    """
    if isinstance(given, str):
        return [UserMessage(given)]
    messages: list[Message] = []
    for index, item in enumerate(given):
        if item.get("type") == "reasoning":
            continue  # what was thought is no part of the conversation
        _append(messages, _item(item, f"input[{index}]"))
    return messages


def messages_of_output(items: list[Item]) -> list[Message]:
    """What an answer adds to the conversation."""
    messages: list[Message] = []
    for item in items:
        match item:
            case ReasoningItem():
                pass  # what was thought is no part of the conversation
            case MessageItem():
                text = "".join(part.text for part in item.content)
                _append(messages, _MessageInput("assistant", text))
            case CallItem():
                _append(messages, _CallInput(item.call_id, item.name, item.arguments))
    return messages


def _item(item: dict[str, Any], where: str) -> _MessageInput | _CallInput | _CallOutput:
    kind = item.get("type", "message")
    type_ = _ITEMS.get(kind) if isinstance(kind, str) else None
    if type_ is None:
        raise bad_request(f"{where}: items of type {kind!r} are not supported.", f"{where}.type")
    try:
        return msgspec.convert(item, type_)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `$")
        raise bad_request(f"{where}: {message}", where + path.removesuffix("`")) from None


def _append(messages: list[Message], item: _MessageInput | _CallInput | _CallOutput) -> None:
    """Add an item; the calls of one turn are one assistant's message, with the text before them."""
    match item:
        case _MessageInput(role, content):
            messages.append(_ROLES[role](_text(content)))
        case _CallOutput(call_id, output):
            messages.append(ToolMessage(_text(output), call_id))
        case _CallInput(call_id, name, arguments):
            if not messages or not isinstance(messages[-1], AssistantMessage):
                messages.append(AssistantMessage())
            last = messages[-1]
            assert isinstance(last, AssistantMessage)
            last.tool_calls = [*(last.tool_calls or []), ToolCall(call_id, FunctionCall(name, arguments))]


def _text(content: _Content) -> str:
    if isinstance(content, str):
        return content
    return "".join(part.refusal if isinstance(part, _Refusal) else part.text for part in content)
