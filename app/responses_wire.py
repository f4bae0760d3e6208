"""POST /v1/responses on the wire: what is asked, what is answered, and the events of a stream."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from app.protocol import DrawingFields, Tokens, Unsupported, UnsupportedFlag, UnsupportedList, neutral
from app.protocol import Function as ChatFunction

_NAME = "^[a-zA-Z0-9_.-]{1,64}$"


class FunctionTool(msgspec.Struct, tag_field="type", tag="function", kw_only=True):
    name: Annotated[str, msgspec.Meta(pattern=_NAME)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    def as_chat(self) -> ChatFunction:
        return ChatFunction(self.name, self.description, self.parameters, self.strict)


class NamedFunction(msgspec.Struct, tag_field="type", tag="function"):
    name: str


class TextFormat(msgspec.Struct, tag_field="type", tag="text"):
    pass


class JsonObjectFormat(msgspec.Struct, tag_field="type", tag="json_object"):
    pass


class JsonSchemaFormat(msgspec.Struct, tag_field="type", tag="json_schema", kw_only=True):
    name: Annotated[str, msgspec.Meta(pattern="^[a-zA-Z0-9_-]{1,64}$")]
    schema: dict[str, Any] | bool
    strict: bool | None = None
    description: str | None = None


class TextOptions(msgspec.Struct, kw_only=True):
    format: TextFormat | JsonObjectFormat | JsonSchemaFormat | None = None
    verbosity: Literal["medium"] | None = None


class ResponsesStreamOptions(msgspec.Struct):
    include_obfuscation: UnsupportedFlag = None
    resumable: bool | None = None
    """Go on when the connection breaks off, and number the events: GET /v1/streams/{id} has the rest."""


class ResponsesRequest(DrawingFields, kw_only=True):
    """Body of POST /v1/responses."""

    model: str
    input: str | Annotated[list[dict[str, Any]], msgspec.Meta(min_length=1)]
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    """Keep the response, to be retrieved or gone on from; true if absent."""
    background: bool | None = None
    stream: bool | None = None
    """In the background too: GET with `stream=true` and `starting_after` has the rest."""
    stream_options: ResponsesStreamOptions | None = None
    max_output_tokens: Tokens | None = None
    text: TextOptions | None = None
    tools: Annotated[list[FunctionTool], msgspec.Meta(max_length=128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedFunction | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    metadata: dict[str, str] | None = None

    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    """As the one before it, it says nothing here."""

    service_tier: Annotated[Any, neutral('"auto"', '"default"')] = None
    prompt_cache_retention: Annotated[Any, neutral('"in_memory"')] = None
    prompt_cache_options: Annotated[Any, neutral("{}")] = None
    background_options: Annotated[Any, neutral("{}")] = None
    context_management: UnsupportedList = None
    access_programs: Unsupported = None
    moderation: Unsupported = None
    image: Unsupported = None
    conversation: Unsupported = None
    include: UnsupportedList = None
    max_tool_calls: Unsupported = None
    prompt: Unsupported = None
    reasoning: Annotated[Any, neutral("{}", '{"effort":"none"}')] = None
    top_logprobs: Annotated[Any, neutral("0")] = None
    truncation: Annotated[Any, neutral('"disabled"')] = None
    n: Annotated[Any, neutral("1")] = None
    max_tokens: Unsupported = None
    max_completion_tokens: Unsupported = None
    response_format: Annotated[Any, neutral('{"type":"text"}')] = None
    prompt_logprobs: Unsupported = None
    return_token_ids: UnsupportedFlag = None
    timings: UnsupportedFlag = None


class RetrieveQuery(msgspec.Struct, kw_only=True):
    """The query of GET /v1/responses/{id}."""

    stream: bool = False
    starting_after: Annotated[int, msgspec.Meta(ge=0, le=2**53)] | None = None
    """Number of the last event that is there already; of a stream."""


class TextPart(msgspec.Struct, tag_field="type", tag="output_text", kw_only=True):
    text: str
    annotations: list[Any] = []
    logprobs: list[Any] = []


Status = Literal["in_progress", "completed", "incomplete"]


class MessageItem(msgspec.Struct, tag_field="type", tag="message", kw_only=True):
    id: str
    status: Status
    role: Literal["assistant"] = "assistant"
    content: list[TextPart]


class ReasoningPart(msgspec.Struct, tag_field="type", tag="reasoning_text"):
    text: str


class ReasoningItem(msgspec.Struct, tag_field="type", tag="reasoning", kw_only=True):
    id: str
    status: Status
    summary: list[Any] = []
    content: list[ReasoningPart]


class CallItem(msgspec.Struct, tag_field="type", tag="function_call", kw_only=True):
    id: str
    status: Status
    call_id: str
    name: str
    arguments: str


Item = MessageItem | ReasoningItem | CallItem


class InputTokensDetails(msgspec.Struct):
    cached_tokens: int


class OutputTokensDetails(msgspec.Struct):
    reasoning_tokens: int


class ResponseUsage(msgspec.Struct, kw_only=True):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseError(msgspec.Struct):
    code: str
    message: str


class IncompleteDetails(msgspec.Struct):
    reason: Literal["max_output_tokens"] = "max_output_tokens"


class Response(msgspec.Struct, tag_field="object", tag="response", kw_only=True):
    id: str
    created_at: int
    status: Status | Literal["failed", "cancelled"]
    background: bool
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None
    max_output_tokens: int | None
    model: str
    output: list[Item]
    parallel_tool_calls: bool
    previous_response_id: str | None
    store: bool
    temperature: float
    text: TextOptions
    tool_choice: Literal["none", "auto", "required"] | NamedFunction
    tools: list[FunctionTool]
    top_p: float
    truncation: Literal["disabled"] = "disabled"
    usage: ResponseUsage | None = None
    user: str | UnsetType = UNSET
    metadata: dict[str, str]


class Event(msgspec.Struct, tag_field="type", kw_only=True):
    sequence_number: int = 0


class Created(Event, tag="response.created"):
    response: Response


class InProgress(Event, tag="response.in_progress"):
    response: Response


class Completed(Event, tag="response.completed"):
    response: Response


class Incomplete(Event, tag="response.incomplete"):
    response: Response


class ItemAdded(Event, tag="response.output_item.added"):
    output_index: int
    item: Item


class ItemDone(Event, tag="response.output_item.done"):
    output_index: int
    item: Item


class _PartEvent(Event, kw_only=True):
    item_id: str
    output_index: int
    content_index: int = 0


class PartAdded(_PartEvent, tag="response.content_part.added"):
    part: TextPart


class PartDone(_PartEvent, tag="response.content_part.done"):
    part: TextPart


class TextDelta(_PartEvent, tag="response.output_text.delta"):
    delta: str
    logprobs: list[Any] = []


class TextDone(_PartEvent, tag="response.output_text.done"):
    text: str
    logprobs: list[Any] = []


class ReasoningDelta(_PartEvent, tag="response.reasoning_text.delta"):
    delta: str


class ReasoningDone(_PartEvent, tag="response.reasoning_text.done"):
    text: str


class ArgumentsDelta(Event, tag="response.function_call_arguments.delta"):
    item_id: str
    output_index: int
    delta: str


class ArgumentsDone(Event, tag="response.function_call_arguments.done"):
    item_id: str
    output_index: int
    name: str
    arguments: str


class Failed(Event, tag="response.failed"):
    response: Response


class Error(Event, tag="error"):
    code: str | None
    message: str
    param: str | None
