"""A generation written as an answer of Anthropic's Messages API, whole or as events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from app.anthropic_wire import (
    Block,
    BlockDelta,
    BlockStart,
    BlockStop,
    Ending,
    InputDelta,
    Message,
    MessageDelta,
    MessageStart,
    MessageStop,
    StopReason,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    ThinkingDelta,
    ToolUseBlock,
    Usage,
    error_body,
)
from app.errors import ApiError
from app.generation import Usage as GenerationUsage
from app.replies import ChunkUsage, Identity
from app.sse import named_event
from app.tool_calls import CallArguments, CallStart, Content, Piece, Reasoning, Splitter, pieces_of
from engine.stream import Update


class AnthropicWire:
    """Named events, of which `message_stop` is the last."""

    done = b""

    def frame(self, chunk: msgspec.Struct) -> bytes:
        return named_event(str(type(chunk).__struct_config__.tag), msgspec.json.encode(chunk))

    def failure(self, error: ApiError) -> tuple[bytes, ...]:
        return (self.frame(error_body(error)),)


ANTHROPIC_WIRE = AnthropicWire()


class AnthropicReply:
    """Writes the one choice of a generation.

    Args:
        prompt_tokens: length of the prompt.
        splitter: reads the choice's text.
    """

    def __init__(self, identity: Identity, prompt_tokens: int, splitter: Splitter) -> None:
        self._identity = identity
        self._prompt_tokens = prompt_tokens
        self._splitter = splitter
        self._blocks: list[Block] = []
        self._arguments = ""
        """What the last block's input is so far, as JSON."""

    def opening(self, usage: ChunkUsage) -> Iterable[msgspec.Struct]:
        yield MessageStart(self._message([], Usage(input_tokens=self._prompt_tokens, output_tokens=0)))

    def chunks(self, update: Update, usage: ChunkUsage) -> Iterator[msgspec.Struct]:
        for piece in pieces_of(self._splitter, update):
            yield from self._take(piece)
        if update.finish_reason is not None:
            assert isinstance(usage, GenerationUsage)
            yield from self._end_block()
            yield MessageDelta(self._ending(update), _usage(usage))
            yield MessageStop()

    def closing(self, usage: ChunkUsage) -> Iterable[msgspec.Struct]:
        return ()  # the last events of the choice have the usage

    def whole(self, updates: list[Update], usage: GenerationUsage) -> Message:
        (update,) = updates
        for _ in self.chunks(update, usage):
            pass
        message = self._message(self._blocks, _usage(usage))
        ending = self._ending(update)
        message.stop_reason, message.stop_sequence = ending.stop_reason, ending.stop_sequence
        return message

    def _message(self, content: list[Block], usage: Usage) -> Message:
        return Message(id=self._identity.id, model=self._identity.model, content=content, usage=usage)

    def _take(self, piece: Piece) -> Iterator[msgspec.Struct]:
        match piece:
            case Content(text):
                block = self._blocks[-1] if self._blocks else None
                if not isinstance(block, TextBlock):
                    yield from self._end_block()
                    block = TextBlock("")
                    yield self._begin(block)
                yield BlockDelta(len(self._blocks) - 1, TextDelta(text))
                block.text += text
            case Reasoning(text):
                if not self._blocks:
                    yield self._begin(ThinkingBlock(""))
                (thought,) = self._blocks
                assert isinstance(thought, ThinkingBlock)
                yield BlockDelta(0, ThinkingDelta(text))
                thought.thinking += text
            case CallStart(_, id_, name):
                yield from self._end_block()
                yield self._begin(ToolUseBlock(id_.replace("call_", "toolu_"), name, {}))
            case CallArguments(_, text):
                self._arguments += text
                yield BlockDelta(len(self._blocks) - 1, InputDelta(text))

    def _begin(self, block: Block) -> BlockStart:
        self._blocks.append(block)
        self._arguments = ""
        return BlockStart(len(self._blocks) - 1, block)

    def _end_block(self) -> Iterator[BlockStop]:
        if not self._blocks:
            return
        block = self._blocks[-1]
        if isinstance(block, ToolUseBlock):
            block.input = _input(self._arguments)
        yield BlockStop(len(self._blocks) - 1)

    def _ending(self, update: Update) -> Ending:
        reason: StopReason = "end_turn"
        if update.finish_reason == "length":
            reason = "max_tokens"
        elif any(isinstance(block, ToolUseBlock) for block in self._blocks):
            reason = "tool_use"
        elif isinstance(update.stop_reason, str):
            reason = "stop_sequence"
        return Ending(reason, update.stop_reason if isinstance(update.stop_reason, str) else None)


def _input(arguments: str) -> dict[str, Any]:
    """A call's input; empty where the arguments were cut off, as `stop_reason` then says, or are no JSON."""
    try:
        return msgspec.json.decode(arguments, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return {}


def _usage(usage: GenerationUsage) -> Usage:
    cached = usage.prompt_tokens_details.cached_tokens
    return Usage(
        input_tokens=usage.prompt_tokens - cached,
        cache_read_input_tokens=cached,
        output_tokens=usage.completion_tokens,
    )
