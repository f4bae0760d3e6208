"""Chat messages on the wire, and the plain form that chat templates read."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from app.errors import bad_request


class TextPart(msgspec.Struct, tag_field="type", tag="text"):
    text: str


class RefusalPart(msgspec.Struct, tag_field="type", tag="refusal"):
    refusal: str


MAX_PARTS = 1024
MAX_MESSAGES = 4096

Content = str | Annotated[list[TextPart], msgspec.Meta(max_length=MAX_PARTS)]


class FunctionCall(msgspec.Struct):
    name: str
    arguments: str


class ToolCall(msgspec.Struct):
    id: str
    function: FunctionCall
    type: Literal["function"] = "function"


class SystemMessage(msgspec.Struct, tag_field="role", tag="system"):
    content: Content
    name: str | None = None


class DeveloperMessage(msgspec.Struct, tag_field="role", tag="developer"):
    content: Content
    name: str | None = None


class UserMessage(msgspec.Struct, tag_field="role", tag="user"):
    content: Content
    name: str | None = None


class AssistantMessage(msgspec.Struct, tag_field="role", tag="assistant"):
    content: str | Annotated[list[TextPart | RefusalPart], msgspec.Meta(max_length=MAX_PARTS)] | None = None
    name: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    tool_calls: Annotated[list[ToolCall], msgspec.Meta(max_length=128)] | None = None


class ToolMessage(msgspec.Struct, tag_field="role", tag="tool"):
    content: Content
    tool_call_id: str
    name: str | None = None


Message = SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage
Messages = Annotated[list[Message], msgspec.Meta(min_length=1, max_length=MAX_MESSAGES)]


def plain_messages(messages: list[Message]) -> list[dict[str, Any]]:
    """Messages as chat templates expect them: content is one string, absent fields are absent.

    Parts are joined without a separator. A developer's message is a system message to an open model. The
    arguments of earlier tool calls become objects again.

    Raises:
        ApiError: the arguments of an earlier call are not a JSON object.
    """
    return [_plain(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _plain(message: Message, path: str) -> dict[str, Any]:
    role = "system" if isinstance(message, DeveloperMessage) else str(type(message).__struct_config__.tag)
    plain: dict[str, Any] = {"role": role, "content": _text(message.content)}
    if message.name is not None:
        plain["name"] = message.name
    if isinstance(message, ToolMessage):
        plain["tool_call_id"] = message.tool_call_id
    if isinstance(message, AssistantMessage):
        if message.refusal and not plain["content"]:
            plain["content"] = message.refusal
        if message.reasoning_content is not None:
            plain["reasoning_content"] = message.reasoning_content
        if message.tool_calls:
            plain["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {
                        "name": call.function.name,
                        "arguments": _arguments(call, f"{path}.tool_calls[{index}].function.arguments"),
                    },
                }
                for index, call in enumerate(message.tool_calls)
            ]
    return plain


def _text(content: str | list[TextPart] | list[TextPart | RefusalPart] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part.text if isinstance(part, TextPart) else part.refusal for part in content)


def _arguments(call: ToolCall, param: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(call.function.arguments or "{}", type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        raise bad_request(f"{param}: the arguments of a tool call must be a JSON object.", param) from None
