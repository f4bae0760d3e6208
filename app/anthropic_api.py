"""POST /v1/messages and /v1/messages/count_tokens, as Anthropic has them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import msgspec

from app.anthropic_reply import ANTHROPIC_WIRE, AnthropicReply
from app.anthropic_wire import (
    AssistantTurn,
    Conversation,
    MessagesRequest,
    TextBlock,
    ThinkingBlock,
    TokenCount,
    ToolChoice,
    ToolResultBlock,
    ToolUseBlock,
    UserTurn,
)
from app.chat_generation import submit_chat
from app.errors import ApiError, bad_request
from app.messages import (
    AssistantMessage,
    FunctionCall,
    Message,
    SystemMessage,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from app.protocol import (
    ChatRequest,
    Function,
    JsonSchemaFormat,
    NamedFunction,
    NamedToolChoice,
    ResponseFormat,
    StreamOptions,
    Tool,
    refuse_unsupported,
)
from app.replies import Exchange, Identity
from app.state import AppState
from app.tools import plan_answer

_FIELDS = {
    "response_format": "output_config.format",
    "].function.parameters": "].input_schema",
    "].function.": "].",
}
"""What this API calls the fields of the chat API, and parts of their names."""


async def create_message(state: AppState, body: bytes) -> Exchange:
    """Check, prepare and submit one request.

    Raises:
        ApiError: it is refused; nothing of it is left in the engine.
    """
    request = await state.decode(body, MessagesRequest)
    refuse_unsupported(request)
    chat_request = _chat_request(request)
    chat_request.max_tokens = request.max_tokens
    chat_request.temperature = request.temperature
    chat_request.top_p = request.top_p
    chat_request.top_k = request.top_k
    chat_request.stop = request.stop_sequences
    identity = Identity.new("msg_", state.model_name)
    with _own_names():
        chat = await submit_chat(state, chat_request, request_id=identity.id, prompt_field="messages")
    reply = AnthropicReply(identity, chat.generation.requests[0].prompt_tokens, chat.splitter())
    options = StreamOptions(continuous_usage_stats=True)
    return Exchange(chat.generation, reply, request.stream or False, options, ANTHROPIC_WIRE)


async def count_tokens(state: AppState, body: bytes) -> TokenCount:
    """The tokens of a conversation's prompt.

    Raises:
        ApiError: it would be refused.
    """
    request = await state.decode(body, Conversation)
    refuse_unsupported(request)
    chat_request = _chat_request(request)
    state.check(chat_request)
    with _own_names():
        tools = plan_answer(chat_request).tools
    return TokenCount(len(await state.encode_chat(chat_request, tools)))


@contextmanager
def _own_names() -> Iterator[None]:
    """Refusals inside name fields as this API does."""
    try:
        yield
    except ApiError as error:
        for theirs, ours in _FIELDS.items():
            error.detail.param = error.detail.param and error.detail.param.replace(theirs, ours)
        raise


def _chat_request(request: Conversation) -> ChatRequest:
    messages: list[Message] = []
    if request.system:
        messages.append(SystemMessage(_text(request.system)))
    for turn in request.messages:
        messages += _user(turn) if isinstance(turn, UserTurn) else [_assistant(turn)]
    choice = request.tool_choice
    # A turn of the assistant that comes last is one to be gone on with.
    goes_on = isinstance(messages[-1], AssistantMessage)
    return ChatRequest(
        model=request.model,
        messages=messages,
        continue_final_message=goes_on,
        tools=[
            Tool(Function(tool.name, tool.description, tool.input_schema, tool.strict), "function")
            for tool in request.tools or []
        ],
        tool_choice=_tool_choice(choice) if choice else None,
        parallel_tool_calls=not (choice and choice.disable_parallel_tool_use),
        response_format=_response_format(request),
    )


def _response_format(request: Conversation) -> ResponseFormat | None:
    wanted = request.output_config and request.output_config.format
    return ResponseFormat("json_schema", JsonSchemaFormat("answer", wanted.schema)) if wanted else None


def _tool_choice(choice: ToolChoice) -> Literal["none", "auto", "required"] | NamedToolChoice:
    if choice.type == "any":
        return "required"
    if choice.type != "tool":
        return choice.type
    if choice.name is None:
        raise bad_request("tool_choice of type tool needs a name.", "tool_choice.name")
    return NamedToolChoice(NamedFunction(choice.name), "function")


def _user(turn: UserTurn) -> list[Message]:
    """Results of tools, one message each, then what the user says."""
    if isinstance(turn.content, str):
        return [UserMessage(turn.content)]
    results: list[Message] = [
        ToolMessage(_text(block.content or ""), block.tool_use_id)
        for block in turn.content
        if isinstance(block, ToolResultBlock)
    ]
    said = [block for block in turn.content if isinstance(block, TextBlock)]
    return [*results, UserMessage(_text(said))] if said or not results else results


def _assistant(turn: AssistantTurn) -> Message:
    if isinstance(turn.content, str):
        return AssistantMessage(turn.content)
    calls = [
        ToolCall(block.id, FunctionCall(block.name, msgspec.json.encode(block.input).decode()))
        for block in turn.content
        if isinstance(block, ToolUseBlock)
    ]
    said = [block for block in turn.content if isinstance(block, TextBlock)]
    thought = "".join(block.thinking for block in turn.content if isinstance(block, ThinkingBlock))
    return AssistantMessage(_text(said), reasoning_content=thought or None, tool_calls=calls or None)


def _text(content: str | list[TextBlock]) -> str:
    return content if isinstance(content, str) else "".join(block.text for block in content)
