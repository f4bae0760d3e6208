"""Telling what a model thinks from what it answers."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, auto

from app.tool_calls import Piece, Reasoning, Splitter
from engine.stream import FinishReason
from engine.tokenizer import Tokenizer

OPEN = "<think>"
CLOSE = "</think>"


class _At(Enum):
    BEGINNING = auto()
    THINKING = auto()
    AFTER = auto()
    ANSWER = auto()


class Thinking:
    """Takes what is between `<think>` and `</think>` at the answer's beginning; the rest is read by `answer`.

    The white space around what was thought belongs to neither.

    Args:
        begun: the prompt ended with `<think>` already.
    """

    def __init__(self, answer: Splitter, *, begun: bool) -> None:
        self._answer = answer
        self._at = _At.THINKING if begun else _At.BEGINNING
        self._held = ""
        """Text not yet given out."""
        self._has_thought = False

    def feed(self, text: str) -> list[Piece]:
        self._held += text
        pieces: list[Piece] = []
        if self._at is _At.BEGINNING:
            self._begin()
        if self._at is _At.THINKING:
            self._think(pieces)
        if self._at is _At.AFTER:
            self._held = self._held.lstrip()
            self._at = _At.ANSWER if self._held else _At.AFTER
        if self._at is _At.ANSWER:
            rest, self._held = self._held, ""
            pieces += self._answer.feed(rest)
        return pieces

    def finish(self) -> list[Piece]:
        rest, self._held = self._held, ""
        if self._at is _At.THINKING:
            return [Reasoning(rest)] if rest.strip() else []
        return [*(self._answer.feed(rest) if self._at is _At.BEGINNING else []), *self._answer.finish()]

    def finish_reason(self, reason: FinishReason) -> str:
        return self._answer.finish_reason(reason)

    def _begin(self) -> None:
        start = self._held.lstrip()
        if start.startswith(OPEN):
            self._held = start[len(OPEN) :]
            self._at = _At.THINKING
        elif not OPEN.startswith(start):
            self._at = _At.ANSWER

    def _think(self, pieces: list[Piece]) -> None:
        if not self._has_thought:
            self._held = self._held.lstrip()
        thought, closed, rest = self._held.partition(CLOSE)
        if closed:
            self._held = rest
            self._at = _At.AFTER
            thought = thought.rstrip()
        else:
            thought = thought[: len(thought) - _begun(thought)].rstrip()
            self._held = self._held[len(thought) :]
        if thought:
            self._has_thought = True
            pieces.append(Reasoning(thought))


def count_thought(token_ids: Iterable[int], tokenizer: Tokenizer) -> int:
    """How many of an answer's tokens belong to the thought it begins with, the tags included."""
    tail, close, count = b"", CLOSE.encode(), 0
    for token_id in token_ids:
        count += 1
        tail += tokenizer.bytes_of(token_id, skip_special=False)
        if close in tail:
            break
        tail = tail[-len(close) :]
    return count


def _begun(text: str) -> int:
    """Length of the longest end of `text` that `</think>` begins with."""
    return next(n for n in range(len(CLOSE) - 1, -1, -1) if text.endswith(CLOSE[:n]))
