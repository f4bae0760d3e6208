"""The OpenAPI 3.1 document of this server, made from the types that requests are decoded into."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, get_type_hints

import msgspec

from app import anthropic_wire, embeddings, responses_wire, schema_check, score, tokens_api
from app.chat_wire import ChatChunk, ChatCompletion
from app.completions import Completion
from app.errors import ErrorBody
from app.models_api import Model, ModelList
from app.operations import Status
from app.protocol import ChatRequest, CompletionRequest
from app.request_report import RequestReport

_REFERENCE = "#/components/schemas/{name}"


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path, as documented."""

    method: str
    path: str
    summary: str
    answer: Any
    """Type of the answer with status 200; None where that is no JSON."""
    body: Any = None
    events: Any = None
    """Type of the data of an event where the answer may be a stream of them."""
    error: Any = ErrorBody
    headers: tuple[tuple[str, str], ...] = ()
    """Names of headers it reads, and what they say."""
    query: tuple[tuple[str, str, str], ...] = ()
    """Names of parameters in the query, their JSON types, and what they say."""
    empty: str = ""
    """When the answer is a 204; never if this is empty."""


_EVENTS = (
    responses_wire.Created
    | responses_wire.InProgress
    | responses_wire.ItemAdded
    | responses_wire.PartAdded
    | responses_wire.TextDelta
    | responses_wire.TextDone
    | responses_wire.PartDone
    | responses_wire.ReasoningDelta
    | responses_wire.ReasoningDone
    | responses_wire.ArgumentsDelta
    | responses_wire.ArgumentsDone
    | responses_wire.ItemDone
    | responses_wire.Completed
    | responses_wire.Incomplete
    | responses_wire.Failed
    | responses_wire.Error
)
_ANTHROPIC_EVENTS = (
    anthropic_wire.MessageStart
    | anthropic_wire.BlockStart
    | anthropic_wire.BlockDelta
    | anthropic_wire.BlockStop
    | anthropic_wire.MessageDelta
    | anthropic_wire.MessageStop
    | anthropic_wire.Error
)

OPERATIONS = (
    Operation(
        "post", "/v1/chat/completions", "Answer a conversation", ChatCompletion, ChatRequest, ChatChunk
    ),
    Operation("post", "/v1/completions", "Go on with a text", Completion, CompletionRequest, Completion),
    Operation(
        "post",
        "/v1/responses",
        "Answer a conversation, and keep it",
        responses_wire.Response,
        responses_wire.ResponsesRequest,
        _EVENTS,
    ),
    Operation(
        "get",
        "/v1/responses/{id}",
        "A response that is kept, or the events of one in the background",
        responses_wire.Response,
        events=_EVENTS,
        query=(
            ("stream", "boolean", "Send its events, and go on live; if it was begun as a stream."),
            ("starting_after", "integer", "The last event that is there already, by its sequence_number."),
        ),
    ),
    Operation("delete", "/v1/responses/{id}", "Forget a response", dict[str, str | bool]),
    Operation(
        "post", "/v1/responses/{id}/cancel", "End a response in the background", responses_wire.Response
    ),
    Operation(
        "post",
        "/v1/messages",
        "Answer a conversation in Anthropic's form",
        anthropic_wire.Message,
        anthropic_wire.MessagesRequest,
        _ANTHROPIC_EVENTS,
        anthropic_wire.Error,
    ),
    Operation(
        "post",
        "/v1/messages/count_tokens",
        "Count the tokens of a conversation",
        anthropic_wire.TokenCount,
        anthropic_wire.Conversation,
        error=anthropic_wire.Error,
    ),
    Operation(
        "post",
        "/v1/embeddings",
        "The hidden state at each input's last token",
        embeddings.Embeddings,
        embeddings.EmbeddingsRequest,
    ),
    Operation("post", "/v1/score", "How likely labels are after prompts", score.Scores, score.ScoreRequest),
    Operation("get", "/v1/models", "The model that is served, as a list", ModelList),
    Operation("get", "/v1/models/{model}", "The model that is served", Model),
    Operation(
        "post", "/tokenize", "Text or messages to token ids", tokens_api.Tokens, tokens_api.TokenizeRequest
    ),
    Operation(
        "post", "/detokenize", "Token ids to text", tokens_api.Detokenized, tokens_api.DetokenizeRequest
    ),
    Operation(
        "post",
        "/v1/schema/check",
        "What the server would make of a JSON schema",
        schema_check.SchemaCheck,
        schema_check.SchemaCheckRequest,
    ),
    Operation(
        "get",
        "/v1/streams/{id}",
        "Go on with a stream that was begun with stream_options.resumable",
        None,
        events=ChatChunk | Completion,
        headers=(("Last-Event-ID", "The last event that arrived; the stream begins anew without it."),),
        empty="Nothing follows that event.",
    ),
    Operation("delete", "/v1/streams/{id}", "End a resumable stream", dict[str, str | bool]),
    Operation("get", "/v1/requests/{id}", "What happened to a request", RequestReport),
    Operation("get", "/tokenizer_info", "The tokenizer", tokens_api.TokenizerInfo),
    Operation("get", "/version", "The server's version", tokens_api.Version),
    Operation("get", "/health", "Whether the engine runs", Status),
    Operation("get", "/ready", "Whether requests are taken", Status),
    Operation("get", "/metrics", "Metrics for Prometheus", None),
)


def document() -> dict[str, Any]:
    """The document, as JSON values."""
    types = [type_ for op in OPERATIONS for type_ in (op.body, op.answer, op.events, op.error)]
    given = [type_ for type_ in types if type_ is not None]
    schemas, components = msgspec.json.schema_components(given, ref_template=_REFERENCE)
    schema_of = {id(type_): schema for type_, schema in zip(given, schemas, strict=True)}
    for op in OPERATIONS:
        if op.body is not None:
            _tell_what_is_refused(op.body, components[schema_of[id(op.body)]["$ref"].rpartition("/")[2]])
    paths: dict[str, dict[str, Any]] = {}
    for op in OPERATIONS:
        paths.setdefault(op.path, {})[op.method] = _operation(op, schema_of)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Radish", "version": version("radish-serve")},
        "paths": paths,
        "components": {"schemas": components},
    }


def _operation(op: Operation, schema_of: dict[int, Any]) -> dict[str, Any]:
    content = {} if op.answer is None else _json(schema_of[id(op.answer)])
    if op.events is not None:
        content["text/event-stream"] = {
            "schema": {"type": "string"},
            "x-event-schema": schema_of[id(op.events)],
        }
    content = content or {"text/plain": {}}
    described: dict[str, Any] = {
        "summary": op.summary,
        "operationId": f"{op.method} {op.path}",
        "responses": {
            "200": {"description": "Done.", "content": content},
            "default": {"description": "Refused or failed.", "content": _json(schema_of[id(op.error)])},
        },
    }
    if op.body is not None:
        described["requestBody"] = {"required": True, "content": _json(schema_of[id(op.body)])}
    if op.empty:
        described["responses"]["204"] = {"description": op.empty}
    names = [part[1:-1] for part in op.path.split("/") if part.startswith("{")]
    parameters = [
        *({"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names),
        *({"name": n, "in": "query", "description": d, "schema": {"type": kind}} for n, kind, d in op.query),
        *({"name": n, "in": "header", "description": d, "schema": {"type": "string"}} for n, d in op.headers),
    ]
    if parameters:
        described["parameters"] = parameters
    return described


def _json(schema: Any) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _tell_what_is_refused(type_: type[msgspec.Struct], schema: dict[str, Any]) -> None:
    """Of a parameter that is not supported, only the values that ask for nothing are in the document."""
    for name, hint in get_type_hints(type_, include_extras=True).items():
        for meta in getattr(hint, "__metadata__", ()):
            if isinstance(meta, msgspec.Meta) and meta.extra and "neutral" in meta.extra:
                values = sorted(meta.extra["neutral"])
                schema["properties"][name] = {
                    "description": "Not supported: any other value is refused.",
                    "enum": [msgspec.json.decode(value) for value in values],
                }
