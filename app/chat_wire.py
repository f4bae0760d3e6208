"""What POST /v1/chat/completions answers: the whole answer, or the chunks of a stream."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from app.generation import Usage
from app.json_events import JsonEvent
from app.logprobs import ChatLogprobs, PromptLogprobs
from app.request_report import RequestReport


class CalledFunction(msgspec.Struct):
    name: str
    arguments: str


class Call(msgspec.Struct, kw_only=True):
    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class Message(msgspec.Struct, kw_only=True):
    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    """The same, as newer clients of vLLM call it."""
    tool_calls: list[Call] | UnsetType = UNSET


class Choice(msgspec.Struct, kw_only=True):
    index: int
    message: Message
    logprobs: ChatLogprobs | None = None
    finish_reason: str
    stop_reason: str | int | UnsetType = UNSET
    """vLLM's: the stop string or stop token id that ended the choice."""
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletion(msgspec.Struct, tag_field="object", tag="chat.completion", kw_only=True):
    id: str
    created: int
    model: str
    choices: list[Choice]
    usage: Usage
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    timings: RequestReport | UnsetType = UNSET


class FunctionDelta(msgspec.Struct, kw_only=True):
    name: str | UnsetType = UNSET
    arguments: str


class CallDelta(msgspec.Struct, kw_only=True):
    """The first of a call has its id, type and name; later ones only more of its arguments."""

    index: int
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    function: FunctionDelta


class Delta(msgspec.Struct, kw_only=True):
    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[CallDelta] | UnsetType = UNSET


class ChunkChoice(msgspec.Struct, kw_only=True):
    index: int
    delta: Delta
    json_events: list[JsonEvent] | UnsetType = UNSET
    """The values that this chunk completed, where they are asked for."""
    logprobs: ChatLogprobs | UnsetType = UNSET
    finish_reason: str | None = None
    stop_reason: str | int | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatChunk(msgspec.Struct, tag_field="object", tag="chat.completion.chunk", kw_only=True):
    id: str
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    """null in all chunks but the last where the client asked for usage, as OpenAI does."""
    prompt_token_ids: list[int] | UnsetType = UNSET
    """In the first chunk, where they are asked for."""
    timings: RequestReport | UnsetType = UNSET
    """In the last chunk, where they are asked for."""
