"""Reasoning first and the grammar after: what a model thinks is free, what it answers is not.

A thought stands between two marks, at the very beginning of the output, or begun by the prompt. Between it
and the answer a line break may stand.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from functools import cached_property

import numpy as np

from grammars.base import Grammar, MaskRow, Matcher
from grammars.vocab import Vocabulary

OPEN = b"<think>"
CLOSE = b"</think>"
_BREAKS = (b"\n", b"\n\n")


class ThoughtTokens:
    """The tokens of a vocabulary that thoughts are made of."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.texts = vocabulary.token_bytes
        self._vocabulary = vocabulary
        self._starting: dict[bytes, list[int]] = {}

    @cached_property
    def free(self) -> MaskRow:
        """The mask within a thought: every text, unless something of the answer stands in it."""
        barred = self._vocabulary.special_ids | self._vocabulary.eos_ids
        ids = [i for i, text in enumerate(self.texts) if text and i not in barred and not _answers(text)]
        row = np.zeros(self._vocabulary.row_words, np.int32)
        allow(row, ids)
        return row

    @cached_property
    def breaks(self) -> list[int]:
        """The tokens that may stand between thought and answer."""
        return [i for i, text in enumerate(self.texts) if text in _BREAKS]

    def starting(self, mark: bytes) -> list[int]:
        """The tokens that are a beginning of `mark`, or all of it."""
        known = self._starting.get(mark)
        if known is None:
            known = [i for i, text in enumerate(self.texts) if text and mark.startswith(text)]
            self._starting[mark] = known
        return known

    def beyond(self, mark: bytes) -> list[int]:
        """The tokens that have something of the answer behind the rest of a closing mark."""
        ids: list[int] = self._vocabulary.spellings.starting_with(mark).tolist()
        return [i for i in ids if self.texts[i][len(mark) :].strip()]

    def spell(self, mark: bytes) -> list[int]:
        """Tokens for the rest of a mark."""
        tokens: list[int] = []
        while mark:
            token_id = self._vocabulary.spellings.longest(mark)
            assert token_id is not None, "a vocabulary has all letters of a mark"
            tokens.append(token_id)
            mark = mark[len(self.texts[token_id]) :]
        return tokens


class _At(Enum):
    BEGINNING = auto()
    OPENING = auto()
    """In an opening mark."""
    THINKING = auto()
    AFTER = auto()
    """Behind a thought."""
    ANSWER = auto()


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a matcher is.

    Attributes:
        at: what it is in the middle of.
        mark: how much of an opening or closing mark is written.
    """

    at: _At
    mark: bytes = b""


class AfterThought:
    """A grammar for the answer that may follow a thought, or must if the prompt has begun one."""

    def __init__(self, answer: Grammar, tokens: ThoughtTokens, *, begun: bool) -> None:
        self._answer = answer
        self._tokens = tokens
        self._start = _Place(_At.THINKING if begun else _At.BEGINNING)

    @property
    def nbytes(self) -> int:
        return self._answer.nbytes

    @property
    def min_tokens(self) -> int | None:
        least = self._answer.min_tokens
        marks = self._tokens.spell(CLOSE) if self._start.at is _At.THINKING else []
        return None if least is None else len(marks) + least

    @cached_property
    def _shortest(self) -> list[int] | None:
        """A shortest answer."""
        return self._answer.matcher().shortest_close()

    def matcher(self) -> ThoughtMatcher:
        return ThoughtMatcher(self._answer.matcher(), self._tokens, [self._start], self._shortest)


class ThoughtMatcher:
    """See `grammars.base.Matcher`. The answer's matcher is fed the tokens of the answer only."""

    def __init__(
        self, answer: Matcher, tokens: ThoughtTokens, path: list[_Place], shortest: list[int] | None
    ) -> None:
        self._answer = answer
        self._tokens = tokens
        self._path = path
        """One place more than tokens: the first is the start."""
        self._shortest = shortest
        """A shortest answer, where none has begun."""

    @property
    def _place(self) -> _Place:
        return self._path[-1]

    @property
    def num_tokens(self) -> int:
        return len(self._path) - 1

    @property
    def thinks(self) -> bool:
        """Whether what is being written is not the answer yet."""
        return self._place.at in (_At.OPENING, _At.THINKING)

    @property
    def is_complete(self) -> bool:
        return not self.thinks and self._answer.is_complete

    @property
    def is_exhausted(self) -> bool:
        return self._place.at is _At.ANSWER and self._answer.is_exhausted

    @property
    def is_terminated(self) -> bool:
        return self._answer.is_terminated

    def fill_mask(self, row: MaskRow) -> None:
        place, tokens = self._place, self._tokens
        match place.at:
            case _At.OPENING:
                row[:] = 0
                allow(row, tokens.starting(OPEN[len(place.mark) :]))
            case _At.THINKING:
                row[:] = tokens.free
                if place.mark:
                    forbid(row, tokens.beyond(CLOSE[len(place.mark) :]))
            case _:
                self._answer.fill_mask(row)
                allow(row, self._besides())

    def kept_mask(self) -> MaskRow | None:
        return self._answer.kept_mask() if self._place.at is _At.ANSWER else None

    def _besides(self) -> list[int]:
        """What may come where the answer may begin."""
        match self._place.at:
            case _At.BEGINNING:
                return self._tokens.starting(OPEN)
            case _At.AFTER:
                return self._tokens.breaks
            case _:
                return []

    def accept(self, token_id: int) -> bool:
        place = self._beside_answer(token_id)
        if place is None and not self.thinks and self._answer.accept(token_id):
            place = _Place(_At.ANSWER)
        return self._go(place)

    def accept_within(self, token_id: int, budget: int) -> int | None:
        place = self._beside_answer(token_id)
        if place is None:
            taken = None if self.thinks else self._answer.accept_within(token_id, budget)
            return taken if taken is not None and self._go(_Place(_At.ANSWER)) else None
        self._go(place)
        close = self.shortest_close()
        if close is None or len(close) <= budget:
            return token_id
        self.rollback(1)
        close = self.shortest_close()
        return close[0] if close and self.accept(close[0]) else None

    def _go(self, place: _Place | None) -> bool:
        if place is not None:
            self._path.append(place)
        return place is not None

    def _beside_answer(self, token_id: int) -> _Place | None:
        """The place after a token that is no part of the answer; None for all others."""
        place, tokens = self._place, self._tokens
        text = tokens.texts[token_id] if 0 <= token_id < len(tokens.texts) else b""
        match place.at:
            case _At.THINKING if text and tokens.free[token_id >> 5] >> (token_id & 31) & 1:
                return None if _answers(place.mark + text) else _thought(place.mark + text)
            case _At.OPENING | _At.BEGINNING if text and OPEN.startswith(place.mark + text):
                mark = place.mark + text
                if place.at is _At.BEGINNING and mark != OPEN and self._answer_takes(token_id):
                    return None
                return _Place(_At.THINKING) if mark == OPEN else _Place(_At.OPENING, mark)
            case _At.AFTER if token_id in tokens.breaks and not self._answer_takes(token_id):
                return _Place(_At.ANSWER)
        return None

    def _answer_takes(self, token_id: int) -> bool:
        return self._answer.fork().accept(token_id)

    def shortest_close(self) -> list[int] | None:
        place = self._place
        answer = self._answer.shortest_close() if self._answer.num_tokens else self._shortest
        match place.at:
            case _At.OPENING:
                marks = [*self._tokens.spell(OPEN[len(place.mark) :]), *self._tokens.spell(CLOSE)]
            case _At.THINKING:
                marks = self._tokens.spell(CLOSE[len(place.mark) :])
            case _:
                marks = []
        return None if answer is None else [*marks, *answer]

    def rollback(self, count: int) -> None:
        if not 0 <= count <= self.num_tokens:
            raise ValueError(f"cannot undo {count} of {self.num_tokens} tokens")
        before = len(self._path) - count
        # The break before the answer is at the answer's place, but none of its tokens.
        answered = self._answer.num_tokens
        in_answer = sum(place.at is _At.ANSWER for place in self._path[before:])
        self._answer.rollback(min(in_answer, answered))
        del self._path[before:]

    def fork(self) -> ThoughtMatcher:
        return ThoughtMatcher(self._answer.fork(), self._tokens, self._path.copy(), self._shortest)

    def forced_tokens(self) -> list[int]:
        return self._answer.forced_tokens() if self._place.at is _At.ANSWER else []


def _thought(text: bytes) -> _Place:
    """The place behind the end of a thought's text, which holds a closing mark or not."""
    if CLOSE in text:
        return _Place(_At.AFTER)
    size = next(n for n in range(len(CLOSE) - 1, -1, -1) if text.endswith(CLOSE[:n]))
    return _Place(_At.THINKING, text[len(text) - size :])


def _answers(text: bytes) -> bool:
    """Whether something of the answer stands behind a closing mark."""
    return bool(text.partition(CLOSE)[2].strip())


def allow(row: MaskRow, ids: list[int]) -> None:
    """Set the bits of tokens."""
    index = np.array(ids, np.int64)
    np.bitwise_or.at(row.view(np.uint32), index >> 5, np.uint32(1) << (index & 31).astype(np.uint32))


def forbid(row: MaskRow, ids: list[int]) -> None:
    """Clear the bits of tokens."""
    index = np.array(ids, np.int64)
    np.bitwise_and.at(row.view(np.uint32), index >> 5, ~(np.uint32(1) << (index & 31).astype(np.uint32)))
