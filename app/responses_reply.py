"""A generation written as a response of POST /v1/responses, whole or as events."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator

import msgspec
from msgspec.structs import replace

from app.errors import ApiError
from app.generation import Usage
from app.replies import ChunkUsage
from app.responses_wire import (
    ArgumentsDelta,
    ArgumentsDone,
    CallItem,
    Completed,
    Created,
    Error,
    Event,
    Failed,
    Incomplete,
    IncompleteDetails,
    InProgress,
    InputTokensDetails,
    Item,
    ItemAdded,
    ItemDone,
    MessageItem,
    OutputTokensDetails,
    PartAdded,
    PartDone,
    ReasoningDelta,
    ReasoningDone,
    ReasoningItem,
    ReasoningPart,
    Response,
    ResponseError,
    ResponseUsage,
    Status,
    TextDelta,
    TextDone,
    TextPart,
)
from app.sse import named_event
from app.thinking import count_thought
from app.tool_calls import CallArguments, CallStart, Content, Piece, Reasoning, Splitter, pieces_of
from engine.stream import Update
from engine.tokenizer import Tokenizer


class ResponsesWire:
    """Named, numbered events; the last one of a response says itself that it is."""

    done = b""

    def __init__(self, failed: Callable[[ApiError], Response]) -> None:
        self._failed = failed
        self._sequence_number = 0

    def frame(self, chunk: msgspec.Struct) -> bytes:
        assert isinstance(chunk, Event)
        chunk.sequence_number = self._sequence_number
        self._sequence_number += 1
        return named_event(str(type(chunk).__struct_config__.tag), msgspec.json.encode(chunk))

    def failure(self, error: ApiError) -> tuple[bytes, ...]:
        detail = error.detail
        return (
            self.frame(Error(code=detail.code, message=detail.message, param=detail.param)),
            self.frame(Failed(response=self._failed(error))),
        )


class ResponsesReply:
    """Writes the one choice of a generation.

    Args:
        draft: the response as it is before there is any output.
        splitter: reads the choice's text.
        tokenizer: to count the tokens of a thought.
        on_end: called with the response that has ended; gives the one to tell of.
    """

    def __init__(
        self,
        draft: Response,
        splitter: Splitter,
        tokenizer: Tokenizer,
        on_end: Callable[[Response], Response],
    ) -> None:
        self.draft = draft
        self._splitter = splitter
        self._tokenizer = tokenizer
        self._token_ids: list[int] = []
        self._on_end = on_end
        self._items: list[Item] = []

    def opening(self, usage: ChunkUsage) -> Iterable[Event]:
        yield Created(response=self.draft)
        yield InProgress(response=self.draft)

    def chunks(self, update: Update, usage: ChunkUsage) -> Iterator[Event]:
        self._token_ids += update.token_ids
        for piece in pieces_of(self._splitter, update):
            yield from self._take(piece)
        if update.finish_reason is not None:
            assert isinstance(usage, Usage)
            status: Status = "incomplete" if update.finish_reason == "length" else "completed"
            yield from self._end_item(status)
            response = self._finished(status, usage)
            yield Incomplete(response=response) if status == "incomplete" else Completed(response=response)

    def closing(self, usage: ChunkUsage) -> Iterable[Event]:
        return ()  # the last event of the choice has the usage

    def whole(self, updates: list[Update], usage: Usage) -> Response:
        last = [*self.chunks(updates[0], usage)][-1]
        assert isinstance(last, Completed | Incomplete)
        return last.response

    def _finished(self, status: Status, usage: Usage) -> Response:
        response = replace(
            self.draft,
            status=status,
            output=self._items,
            incomplete_details=IncompleteDetails() if status == "incomplete" else None,
            usage=ResponseUsage(
                input_tokens=usage.prompt_tokens,
                input_tokens_details=InputTokensDetails(usage.prompt_tokens_details.cached_tokens),
                output_tokens=usage.completion_tokens,
                output_tokens_details=OutputTokensDetails(self._reasoning_tokens()),
                total_tokens=usage.total_tokens,
            ),
        )
        return self._on_end(response)

    def _reasoning_tokens(self) -> int:
        if self._items and isinstance(self._items[0], ReasoningItem):
            return count_thought(self._token_ids, self._tokenizer)
        return 0

    def failed(self, error: ApiError) -> Response:
        """The response that ended before it was finished."""
        failure = ResponseError("server_error", error.detail.message)
        return self._on_end(replace(self.draft, status="failed", output=self._items, error=failure))

    def _take(self, piece: Piece) -> Iterator[Event]:
        match piece:
            case Content(text):
                yield from self._take_text(text)
            case Reasoning(text):
                yield from self._take_thought(text)
            case CallStart(_, id_, name):
                yield from self._end_item("completed")
                yield self._begin(
                    CallItem(id=_id("fc"), status="in_progress", call_id=id_, name=name, arguments="")
                )
            case CallArguments(_, text):
                call = self._items[-1]
                assert isinstance(call, CallItem)
                call.arguments += text
                yield ArgumentsDelta(item_id=call.id, output_index=len(self._items) - 1, delta=text)

    def _take_text(self, text: str) -> Iterator[Event]:
        message = self._items[-1] if self._items else None
        if not isinstance(message, MessageItem):
            yield from self._end_item("completed")
            message = MessageItem(id=_id("msg"), status="in_progress", content=[])
            yield self._begin(message)
            message.content.append(TextPart(text=""))
            yield PartAdded(item_id=message.id, output_index=len(self._items) - 1, part=TextPart(text=""))
        message.content[0].text += text
        yield TextDelta(item_id=message.id, output_index=len(self._items) - 1, delta=text)

    def _take_thought(self, text: str) -> Iterator[Event]:
        """Thoughts come before all else."""
        if not self._items:
            item = ReasoningItem(id=_id("rs"), status="in_progress", content=[ReasoningPart("")])
            yield self._begin(item)
        (thought,) = self._items
        assert isinstance(thought, ReasoningItem)
        thought.content[0].text += text
        yield ReasoningDelta(item_id=thought.id, output_index=0, delta=text)

    def _begin(self, item: Item) -> Event:
        self._items.append(item)
        # What is written to the item later is no part of this event.
        shown = replace(item) if isinstance(item, CallItem) else replace(item, content=[])
        return ItemAdded(output_index=len(self._items) - 1, item=shown)

    def _end_item(self, status: Status) -> Iterator[Event]:
        """End the item that is being written, if one is."""
        if not self._items:
            return
        item, index = self._items[-1], len(self._items) - 1
        item.status = status
        match item:
            case MessageItem():
                (part,) = item.content
                yield TextDone(item_id=item.id, output_index=index, text=part.text)
                yield PartDone(item_id=item.id, output_index=index, part=part)
            case ReasoningItem():
                yield ReasoningDone(item_id=item.id, output_index=index, text=item.content[0].text)
            case CallItem():
                yield ArgumentsDone(
                    item_id=item.id, output_index=index, name=item.name, arguments=item.arguments
                )
        yield ItemDone(output_index=index, item=item)


def _id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(16)}"
