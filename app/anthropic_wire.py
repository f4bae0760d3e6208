"""Anthropic's Messages API on the wire: what is asked, what is answered, the events of a stream."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from app.errors import ApiError
from app.protocol import Probability, StopString, Tokens, Unsupported, UnsupportedList, neutral


class TextBlock(msgspec.Struct, tag_field="type", tag="text"):
    text: str


class ThinkingBlock(msgspec.Struct, tag_field="type", tag="thinking"):
    thinking: str
    signature: str = ""
    """Nothing has to be signed here."""


class ToolUseBlock(msgspec.Struct, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any]


class ToolResultBlock(msgspec.Struct, tag_field="type", tag="tool_result"):
    tool_use_id: str
    content: str | list[TextBlock] | None = None
    is_error: bool | None = None


class UserTurn(msgspec.Struct, tag_field="role", tag="user"):
    content: str | list[TextBlock | ToolResultBlock]


class AssistantTurn(msgspec.Struct, tag_field="role", tag="assistant"):
    content: str | list[TextBlock | ThinkingBlock | ToolUseBlock]


class ClientTool(msgspec.Struct, kw_only=True):
    name: Annotated[str, msgspec.Meta(pattern="^[a-zA-Z0-9_.-]{1,64}$")]
    input_schema: dict[str, Any]
    description: str | None = None
    type: Literal["custom"] | None = None
    strict: bool | None = None


class ToolChoice(msgspec.Struct, kw_only=True):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class OutputFormat(msgspec.Struct):
    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(msgspec.Struct, kw_only=True):
    format: OutputFormat | None = None


class Conversation(msgspec.Struct, kw_only=True):
    """Body of POST /v1/messages/count_tokens."""

    model: str
    messages: Annotated[list[UserTurn | AssistantTurn], msgspec.Meta(min_length=1)]
    system: str | list[TextBlock] | None = None
    tools: Annotated[list[ClientTool], msgspec.Meta(max_length=128)] | None = None
    tool_choice: ToolChoice | None = None
    output_config: OutputConfig | None = None

    container: Unsupported = None
    mcp_servers: UnsupportedList = None
    thinking: Annotated[Any, neutral('{"type":"disabled"}')] = None


class MessagesRequest(Conversation, kw_only=True):
    """Body of POST /v1/messages."""

    max_tokens: Tokens
    stream: bool | None = None
    temperature: Probability | None = None
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, msgspec.Meta(ge=0)] | None = None
    stop_sequences: Annotated[list[StopString], msgspec.Meta(max_length=16)] | None = None


class TokenCount(msgspec.Struct):
    input_tokens: int


class Usage(msgspec.Struct, kw_only=True):
    """`input_tokens` are those of the prompt that were not found cached."""

    input_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0
    output_tokens: int


StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
Block = TextBlock | ThinkingBlock | ToolUseBlock


class Message(msgspec.Struct, tag_field="type", tag="message", kw_only=True):
    id: str
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[Block]
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    usage: Usage


class MessageStart(msgspec.Struct, tag_field="type", tag="message_start"):
    message: Message


class BlockStart(msgspec.Struct, tag_field="type", tag="content_block_start"):
    index: int
    content_block: Block


class TextDelta(msgspec.Struct, tag_field="type", tag="text_delta"):
    text: str


class ThinkingDelta(msgspec.Struct, tag_field="type", tag="thinking_delta"):
    thinking: str


class InputDelta(msgspec.Struct, tag_field="type", tag="input_json_delta"):
    partial_json: str


class BlockDelta(msgspec.Struct, tag_field="type", tag="content_block_delta"):
    index: int
    delta: TextDelta | ThinkingDelta | InputDelta


class BlockStop(msgspec.Struct, tag_field="type", tag="content_block_stop"):
    index: int


class Ending(msgspec.Struct):
    stop_reason: StopReason
    stop_sequence: str | None


class MessageDelta(msgspec.Struct, tag_field="type", tag="message_delta"):
    delta: Ending
    usage: Usage


class MessageStop(msgspec.Struct, tag_field="type", tag="message_stop"):
    pass


class ErrorDetail(msgspec.Struct):
    type: str
    message: str


class Error(msgspec.Struct, tag_field="type", tag="error"):
    error: ErrorDetail
    request_id: str | UnsetType = UNSET


_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def error_body(error: ApiError) -> Error:
    """An error in the form of this API, which has no place for the parameter but its message."""
    type_ = _ERROR_TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    param = error.detail.param
    message = error.detail.message
    named = message if param is None or param in message else f"{param}: {message}"
    return Error(ErrorDetail(type_, named))
