"""POST /v1/responses; GET, DELETE and cancel of one that is kept."""

from __future__ import annotations

import msgspec
from msgspec import UNSET
from msgspec.structs import replace
from starlette import responses as http
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from app.chat_generation import submit_chat
from app.disconnect import run_while_connected
from app.endpoint import GenerateEndpoint, tell, whole_updates
from app.errors import ApiError, bad_request
from app.generation import Generation
from app.json_endpoint import json_response
from app.json_text import error_path
from app.messages import Message, SystemMessage
from app.protocol import (
    ChatRequest,
    DrawingFields,
    JsonSchemaFormat,
    NamedFunction,
    NamedToolChoice,
    ResponseFormat,
    StreamOptions,
    Tool,
    refuse_unsupported,
)
from app.replies import Exchange, Identity
from app.request_info import RequestInfo
from app.responses_input import messages_of, messages_of_output
from app.responses_reply import ResponsesReply, ResponsesWire
from app.responses_store import StoredResponse
from app.responses_wire import JsonObjectFormat as JsonObjectText
from app.responses_wire import JsonSchemaFormat as JsonSchemaText
from app.responses_wire import NamedFunction as ChosenFunction
from app.responses_wire import (
    Response,
    ResponsesRequest,
    ResponsesStreamOptions,
    RetrieveQuery,
    TextFormat,
    TextOptions,
)
from app.state import AppState

_FIELDS = {"messages": "input", "max_tokens": "max_output_tokens", "response_format": "text.format"}
"""What this API calls the fields of the chat API."""


class ResponsesEndpoint(GenerateEndpoint):
    """A generating endpoint whose answers may also be made while nobody waits."""

    def __init__(self) -> None:
        super().__init__(create_response)

    async def _respond(self, state: AppState, exchange: Exchange, request: Request, send: Send) -> None:
        reply = exchange.reply
        assert isinstance(reply, ResponsesReply)
        if not reply.draft.background:
            await super()._respond(state, exchange, request, send)
            return
        generation = exchange.generation
        try:
            state.responses.get(reply.draft.id, "response_id").generation = generation
        except ApiError:  # too large to be kept
            generation.abort()
            raise
        info: RequestInfo = request.scope["radish"]
        if exchange.stream:
            try:
                stream = state.streams.open(generation, lambda sink: tell(exchange, sink), in_background=True)
            except ApiError:
                state.responses.delete(reply.draft.id)
                raise
            info.recording = stream.task
            await state.streams.send(stream, 0, send, heartbeat_s=state.config.heartbeat)
        else:
            info.recording = state.responses.run(_make(generation, reply))
            await json_response(reply.draft)(request.scope, request.receive, send)


async def _make(generation: Generation, reply: ResponsesReply) -> None:
    """Make a response in the background; the reply keeps it once it has ended."""
    with generation:
        try:
            reply.whole(await whole_updates(generation), generation.usage())
        except ApiError as error:
            reply.failed(error)


class ResponseEndpoint:
    """ASGI endpoint of GET: a response that is kept, or the events of one in the background."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        state: AppState = request.app.state.radish
        stored = state.responses.get(request.path_params["id"], "response_id")
        query = _query(request)
        if not query.stream or request.method == "HEAD":
            await json_response(stored.response)(scope, receive, send)
            return
        # A stream numbers its events from 1, these number themselves from 0.
        after = 0 if query.starting_after is None else query.starting_after + 1
        stream = state.streams.get(stored.response.id)
        work = state.streams.send(stream, after, send, heartbeat_s=state.config.heartbeat)
        await run_while_connected(work, receive)


def _query(request: Request) -> RetrieveQuery:
    given = dict(request.query_params)
    for name, value in given.items():
        if name.partition("[")[0] in ("include", "include_obfuscation") and value not in ("", "false"):
            raise bad_request(f"The parameter {name!r} is not supported.", name, "unsupported_parameter")
    try:
        query = msgspec.convert(given, RetrieveQuery, strict=False)
    except msgspec.ValidationError as error:
        raise bad_request(str(error), error_path(b"", error)) from None
    if query.starting_after is not None and not query.stream:
        raise bad_request("starting_after needs stream to be true.", "starting_after")
    return query


async def create_response(state: AppState, body: bytes) -> Exchange:
    """Check, prepare and submit one request.

    Raises:
        ApiError: it is refused; nothing of it is left in the engine.
    """
    request = await state.decode(body, ResponsesRequest)
    refuse_unsupported(request)
    store, background = request.store is not False, request.background or False
    if background and not store:
        raise bad_request("A response in the background has to be stored.", "store")
    if request.stream_options is not None and not request.stream:
        raise bad_request("stream_options needs stream to be true.", "stream_options")
    given = request.stream_options or ResponsesStreamOptions()
    refuse_unsupported(given, within="stream_options.")
    earlier, nbytes = _earlier(state, request)
    messages, nbytes = [*earlier, *messages_of(request.input)], nbytes + len(body)
    identity = Identity.new("resp_", state.model_name)
    try:
        chat = await submit_chat(
            state, _chat_request(request, messages), request_id=identity.id, prompt_field="input"
        )
    except ApiError as error:
        param = error.detail.param or ""
        error.detail.param = _FIELDS.get(param, param.replace("].function.", "].")) or None
        raise

    def keep(response: Response) -> Response:
        whole = [*messages, *messages_of_output(response.output)]
        size = nbytes + len(msgspec.json.encode(response.output))
        if background:
            return state.responses.finish(response, whole, size)
        if store:
            state.responses.put(StoredResponse(response, whole, size))
        return response

    draft = _draft(request, identity, store=store, background=background)
    if background:
        state.responses.put(StoredResponse(draft, messages, nbytes))
    reply = ResponsesReply(draft, chat.splitter(), state.engine.tokenizer, keep)
    # In the background every stream can be gone on with, and lives as long as the response is being made.
    options = StreamOptions(continuous_usage_stats=True, resumable=given.resumable and not background)
    return Exchange(chat.generation, reply, request.stream or False, options, ResponsesWire(reply.failed))


async def delete_response(request: Request) -> http.Response:
    state: AppState = request.app.state.radish
    id_ = request.path_params["id"]
    state.responses.delete(id_)
    return http.JSONResponse({"id": id_, "object": "response", "deleted": True})


async def cancel_response(request: Request) -> http.Response:
    """End a response in the background; what it has said so far is lost."""
    state: AppState = request.app.state.radish
    stored = state.responses.get(request.path_params["id"], "response_id")
    if not stored.response.background:
        raise bad_request("Only a response in the background can be cancelled.", "response_id")
    if stored.generation is not None:
        stored.response = replace(stored.response, status="cancelled")
        stored.generation.cancel()
    return json_response(stored.response)


def _earlier(state: AppState, request: ResponsesRequest) -> tuple[list[Message], int]:
    """The conversation so far, and its bytes; instructions are not part of it."""
    if request.previous_response_id is None:
        return [], 0
    stored = state.responses.get(request.previous_response_id, "previous_response_id")
    if stored.response.status not in ("completed", "incomplete"):
        raise bad_request(
            f"The response is {stored.response.status}; it cannot be gone on from.", "previous_response_id"
        )
    return stored.messages, stored.nbytes


def _chat_request(request: ResponsesRequest, messages: list[Message]) -> ChatRequest:
    instructions: list[Message] = [SystemMessage(request.instructions)] if request.instructions else []
    choice = request.tool_choice
    return ChatRequest(
        model=request.model,
        messages=[*instructions, *messages],
        max_tokens=request.max_output_tokens,
        chat_template_kwargs=request.chat_template_kwargs,
        response_format=_response_format(request.text),
        tools=[Tool(tool.as_chat(), "function") for tool in request.tools or []],
        tool_choice=NamedToolChoice(NamedFunction(choice.name), "function")
        if isinstance(choice, ChosenFunction)
        else choice,
        parallel_tool_calls=request.parallel_tool_calls,
        **{name: getattr(request, name) for name in DrawingFields.__struct_fields__},
    )


def _response_format(text: TextOptions | None) -> ResponseFormat | None:
    match text and text.format:
        case JsonObjectText():
            return ResponseFormat("json_object")
        case JsonSchemaText() as given:
            schema = JsonSchemaFormat(given.name, given.schema, given.strict, given.description)
            return ResponseFormat("json_schema", schema)
        case _:
            return None


def _draft(request: ResponsesRequest, identity: Identity, *, store: bool, background: bool) -> Response:
    return Response(
        id=identity.id,
        created_at=identity.created,
        status="in_progress",
        background=background,
        instructions=request.instructions,
        max_output_tokens=request.max_output_tokens,
        model=identity.model,
        output=[],
        parallel_tool_calls=request.parallel_tool_calls is not False,
        previous_response_id=request.previous_response_id,
        store=store,
        temperature=1.0 if request.temperature is None else request.temperature,
        text=TextOptions(format=(request.text and request.text.format) or TextFormat()),
        tool_choice=request.tool_choice or "auto",
        tools=request.tools or [],
        top_p=1.0 if request.top_p is None else request.top_p,
        user=UNSET if request.user is None else request.user,
        metadata=request.metadata or {},
    )
