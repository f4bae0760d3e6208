"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from msgspec import UNSET, UnsetType

from app.chat_generation import submit_chat
from app.chat_wire import (
    Call,
    CallDelta,
    CalledFunction,
    ChatChunk,
    ChatCompletion,
    Choice,
    ChunkChoice,
    Delta,
    FunctionDelta,
    Message,
)
from app.generation import Usage
from app.json_events import JsonEvent, JsonEventPlan, JsonEventReader
from app.logprobs import ChatLogprob, ChatLogprobs, chat_logprob
from app.prompt_report import PromptReport, prompt_report
from app.protocol import ChatRequest
from app.replies import ChunkUsage, Exchange, Identity
from app.request_report import RequestReport
from app.slices import JsonList, in_slices
from app.state import AppState
from app.tool_calls import CallArguments, CallStart, Content, Piece, Reasoning, Splitter, pieces_of
from engine.stream import Update
from engine.tokenizer import Tokenizer


async def create_chat_completion(state: AppState, body: bytes) -> Exchange:
    """Check, prepare and submit one chat request.

    Raises:
        ApiError: it is refused; nothing of it is left in the engine.
    """
    request = await state.decode(body, ChatRequest)
    identity = Identity.new("chatcmpl-", state.model_name)
    chat = await submit_chat(state, request, request_id=identity.id, prompt_field="messages")
    reply = ChatReply(
        identity,
        chat.generation.num_choices,
        chat.splitter,
        state.engine.tokenizer if request.logprobs else None,
        prompt=prompt_report(request, chat.generation.requests[0], state.engine.tokenizer),
        json_events=chat.json_events,
        timings=chat.generation.report if request.timings else None,
    )
    tells_logprobs = request.logprobs or request.prompt_logprobs is not None
    return Exchange.of(request, chat.generation, reply, reply.write_logprobs if tells_logprobs else None)


@dataclass(slots=True)
class _ChoiceState:
    """How far one choice's stream is."""

    splitter: Splitter
    json: JsonEventReader | None
    """Reads its text where complete values are to be told."""
    content: ChatChunk | None
    """Says a piece of content, over and over, where nothing else is told with it: most chunks are such."""
    call_json: JsonEventReader | None = None
    """Reads the arguments of the call that is being written, likewise."""
    logprobs: JsonList[ChatLogprob] = field(default_factory=JsonList)
    """Of tokens whose text has not been sent yet, as are these:"""
    token_ids: list[int] = field(default_factory=list)


class ChatReply:
    """Writes a generation in the form of chat completions.

    Args:
        splitter: makes the reader of one choice's text.
        tokenizer: spells the tokens of log-probabilities; None if none are wanted.
        prompt: what is told of the prompt.
        json_events: which of the values that chunks complete are told with them.
        timings: makes the report that comes with the answer; None if none is wanted.
    """

    def __init__(
        self,
        identity: Identity,
        num_choices: int,
        splitter: Callable[[], Splitter],
        tokenizer: Tokenizer | None,
        *,
        prompt: PromptReport,
        json_events: JsonEventPlan,
        timings: Callable[[], RequestReport] | None,
    ) -> None:
        self._identity = identity
        self._tokenizer = tokenizer
        self._prompt = prompt
        self._timings = timings
        self._json_events = json_events
        self._choices = [self._begin(index, splitter()) for index in range(num_choices)]

    def _begin(self, index: int, splitter: Splitter) -> _ChoiceState:
        json = self._json_events.text_reader()
        tells_more = json or self._tokenizer or self._prompt.show_ids
        content = None if tells_more else self._chunk(UNSET, ChunkChoice(index=index, delta=Delta()))
        return _ChoiceState(splitter, json, content)

    async def write_logprobs(self, updates: Sequence[Update]) -> None:
        """To be called with updates before they are told, where log-probabilities are."""
        await self._prompt.write_logprobs()
        if self._tokenizer is None:
            return
        for update in updates:
            written = self._choices[update.index].logprobs
            async for entry in in_slices(update.logprobs):
                written.append(chat_logprob(self._tokenizer, entry))

    def opening(self, usage: ChunkUsage) -> Iterable[ChatChunk]:
        """Roles first, in the order of the choices: clients build their lists by it."""
        for index in range(len(self._choices)):
            chunk = self._chunk(usage, ChunkChoice(index=index, delta=Delta(role="assistant", content="")))
            chunk.prompt_token_ids = self._prompt.token_ids() if index == 0 else UNSET
            yield chunk

    def chunks(self, update: Update, usage: ChunkUsage) -> Iterable[ChatChunk]:
        """New content, then, once the choice ended, a chunk of its own that says why.

        A chunk of content is as it is only until the next one is asked for.
        """
        choice = self._choices[update.index]
        if self._prompt.show_ids:
            choice.token_ids += update.token_ids
        for piece in pieces_of(choice.splitter, update):
            if choice.content is not None and type(piece) is Content:
                choice.content.choices[0].delta.content = piece.text
                choice.content.usage = usage
                yield choice.content
                continue
            yield self._chunk(
                usage,
                ChunkChoice(
                    index=update.index,
                    delta=_delta(piece),
                    json_events=self._read_json(choice, piece) or UNSET,
                    logprobs=self._take_logprobs(choice),
                    token_ids=self._take_token_ids(choice),
                ),
            )
        if update.finish_reason is not None:
            read = choice.json.end() if choice.json and self._json_events.ends_whole(update) else None
            yield self._chunk(
                usage,
                ChunkChoice(
                    index=update.index,
                    delta=Delta(),
                    json_events=read or UNSET,
                    logprobs=self._take_logprobs(choice),
                    token_ids=self._take_token_ids(choice),
                    finish_reason=choice.splitter.finish_reason(update.finish_reason),
                    stop_reason=UNSET if update.stop_reason is None else update.stop_reason,
                ),
            )

    def closing(self, usage: ChunkUsage) -> Iterable[ChatChunk]:
        chunk = self._chunk(usage)
        chunk.timings = self._timings() if self._timings else UNSET
        yield chunk

    def whole(self, updates: list[Update], usage: Usage) -> ChatCompletion:
        return ChatCompletion(
            id=self._identity.id,
            created=self._identity.created,
            model=self._identity.model,
            choices=[self._choice(update) for update in updates],
            usage=usage,
            prompt_logprobs=self._prompt.logprobs(),
            prompt_token_ids=self._prompt.token_ids(),
            timings=self._timings() if self._timings else UNSET,
        )

    def _chunk(self, usage: ChunkUsage, *choices: ChunkChoice) -> ChatChunk:
        return ChatChunk(
            id=self._identity.id,
            created=self._identity.created,
            model=self._identity.model,
            choices=list(choices),
            usage=usage,
        )

    def _read_json(self, choice: _ChoiceState, piece: Piece) -> list[JsonEvent] | None:
        """The values that a piece completes, where they are to be told."""
        match piece:
            case Content(text):
                return choice.json.feed(text) if choice.json else None
            case CallStart(index):
                choice.call_json = self._json_events.call_reader(index)
            case CallArguments(_, text):
                return choice.call_json.feed(text) if choice.call_json else None
        return None

    def _take_logprobs(self, choice: _ChoiceState) -> ChatLogprobs | UnsetType:
        return ChatLogprobs(choice.logprobs.taken()) if choice.logprobs else UNSET

    def _take_token_ids(self, choice: _ChoiceState) -> list[int] | UnsetType:
        taken, choice.token_ids = choice.token_ids, []
        return taken if self._prompt.show_ids else UNSET

    def _choice(self, update: Update) -> Choice:
        assert update.finish_reason is not None
        choice = self._choices[update.index]
        splitter = choice.splitter
        message = _message(pieces_of(splitter, update))
        return Choice(
            index=update.index,
            message=message,
            logprobs=ChatLogprobs(choice.logprobs.taken()) if self._tokenizer else None,
            token_ids=update.token_ids if self._prompt.show_ids else UNSET,
            finish_reason=splitter.finish_reason(update.finish_reason),
            stop_reason=UNSET if update.stop_reason is None else update.stop_reason,
        )


def _delta(piece: Piece) -> Delta:
    match piece:
        case Content(text):
            return Delta(content=text)
        case Reasoning(text):
            return Delta(reasoning_content=text, reasoning=text)
        case CallStart(index, id_, name):
            function = FunctionDelta(name=name, arguments="")
            return Delta(tool_calls=[CallDelta(index=index, id=id_, type="function", function=function)])
        case CallArguments(index, text):
            return Delta(tool_calls=[CallDelta(index=index, function=FunctionDelta(arguments=text))])


def _message(pieces: Iterable[Piece]) -> Message:
    text = thought = ""
    calls: list[Call] = []
    for piece in pieces:
        match piece:
            case Content():
                text += piece.text
            case Reasoning():
                thought += piece.text
            case CallStart():
                calls.append(Call(id=piece.id, function=CalledFunction(piece.name, "")))
            case CallArguments():
                calls[piece.index].function.arguments += piece.text
    message = Message(content=text)
    if calls:
        message.content, message.tool_calls = text or None, calls
    if thought:
        message.reasoning_content = message.reasoning = thought
    return message
