"""Grammars and matchers over llguidance.

What the library leaves to its caller is done here: several end-of-sequence ids, a refused token that
leaves the state as it was, and error states, which never heal and, since copies of a matcher share one
lexer, can spread to every sequence of a grammar. A matcher in an error state is rebuilt with more room
and fed its tokens again.
"""

from __future__ import annotations

import math
import threading
from functools import cached_property
from typing import Any, Self

import numpy as np
from llguidance import LLMatcher, LLParserLimits

from grammars.base import GrammarError, MaskRow
from grammars.lower import Lowered, Sentences
from grammars.rows import RowCache
from grammars.schema.tables import Tables
from grammars.states import STATES_BYTES, State, States
from grammars.tag_tables import TagTables
from grammars.tag_tracker import TagTracker
from grammars.tracking import (
    JsonTracker,
    OffGrammarError,
    RegexTracker,
    RepeatedError,
    Tracker,
)
from grammars.vocab import Vocabulary
from grammars.ways import find_way

_FUEL_FACTOR = 5
_STATES = 100_000
_BASE_BYTES = (1 << 19) + STATES_BYTES
_BYTES_PER_CHAR = 100
_FAR = 1 << 12
"""With this many tokens left, an end that is not found is no reason to steer."""


def limits(*, heavy: bool) -> LLParserLimits:
    """Bounds on the work of one step; a heavy grammar gets more lexer fuel."""
    factor = _FUEL_FACTOR if heavy else 1
    return LLParserLimits(
        initial_lexer_fuel=1_000_000 * factor,
        step_lexer_fuel=200_000 * factor,
        max_lexer_states=_STATES,
        verbose_errors=False,
    )


def complaint(matcher: LLMatcher) -> str:
    """What is wrong with a matcher, in a line; "" if nothing is."""
    error = matcher.get_error().partition("\n")[0]
    return "grammar too complex" if error.startswith("panic") else error


class LlgGrammar:
    """A compiled grammar. Matchers are copies of a template, unless the grammar is heavy.

    Args:
        vocabulary: of the model.
        lowered: the grammar, in llguidance's own format, and what is known of its sentences.
        heavy: it needs more lexer fuel than usual; its matchers share nothing, so that one that
            runs out does not take others along.
        rows: where masks are kept; None: nowhere.

    Raises:
        GrammarError: the engine refuses it.
    """

    def __init__(
        self, vocabulary: Vocabulary, lowered: Lowered, *, heavy: bool = False, rows: RowCache | None = None
    ) -> None:
        self.vocabulary = vocabulary
        self.heavy = heavy
        self.rows = rows
        tracker = _tracker(lowered.sentences, vocabulary)
        self.states = States(tracker) if tracker else None
        self._source = lowered.source
        self._lock = threading.Lock()
        self._template = self._build(heavy=heavy)

    @property
    def nbytes(self) -> int:
        return _BASE_BYTES + _BYTES_PER_CHAR * len(self._source)

    @cached_property
    def min_tokens(self) -> int | None:
        close = self.matcher().shortest_close()
        return None if close is None else len(close)

    def matcher(self) -> LlgMatcher:
        return LlgMatcher(self, self._copy())

    def rebuild(self, tokens: list[int]) -> LLMatcher:
        """A fresh engine matcher with the most fuel, after `tokens`; later matchers start afresh too.

        Raises:
            GrammarError: it fails even so.
        """
        with self._lock:
            self.heavy = True
            self._template = self._build(heavy=True)
        matcher = self._copy()
        if matcher.try_consume_tokens(tokens) != len(tokens) or matcher.is_error():
            raise GrammarError("the grammar is too complex to be followed at this place")
        return matcher

    def _copy(self) -> LLMatcher:
        if self.heavy:
            return self._build(heavy=True)
        with self._lock:
            return self._template.deep_copy()

    def _build(self, *, heavy: bool) -> LLMatcher:
        matcher = LLMatcher(self.vocabulary.tokenizer, self._source, log_level=0, limits=limits(heavy=heavy))
        if matcher.is_error() or not any(matcher.compute_bitmask()):
            raise GrammarError(complaint(matcher) or "no text satisfies the grammar")
        return matcher


def _tracker(sentences: Sentences | None, vocabulary: Vocabulary) -> Tracker[Any] | None:
    match sentences:
        case None:
            return None
        case Tables():
            return JsonTracker(sentences, vocabulary)
        case TagTables():
            return TagTracker(sentences, vocabulary)
        case _:
            return RegexTracker(sentences)


class LlgMatcher:
    """One sequence's place in a grammar; see `grammars.base.Matcher`."""

    def __init__(self, grammar: LlgGrammar, matcher: LLMatcher) -> None:
        self._grammar = grammar
        self._states = grammar.states
        self._matcher = matcher
        self._tokens: list[int] = []
        # One more than tokens: the first is the start.
        self._path: list[State[Any]] = [grammar.states.start] if grammar.states else []
        self._terminated = False

    @property
    def num_tokens(self) -> int:
        return len(self._tokens) + self._terminated

    @property
    def is_complete(self) -> bool:
        return self._terminated or self._matcher.is_accepting()

    @property
    def is_exhausted(self) -> bool:
        return self._terminated or (self._matcher.is_stopped() and self._matcher.is_accepting())

    @property
    def is_terminated(self) -> bool:
        return self._terminated

    def fill_mask(self, row: MaskRow) -> None:
        if self._terminated:
            row[:] = 0
            self._allow_end(row, allowed=True)
            return
        rows = self._grammar.rows if self._states else None
        if rows is not None and rows.copy_to(row, self._path[-1]):
            return
        self._compute_mask(row)
        if rows is not None:
            rows.put(self._path[-1], row)

    @property
    def mask_is_kept(self) -> bool:
        rows = self._grammar.rows if self._states else None
        return self._terminated or (rows is not None and self._path[-1] in rows)

    def _compute_mask(self, row: MaskRow) -> None:
        self._matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
        if self._matcher.is_error():
            self._recover()
            self._matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
        if self._states is not None:
            self._states.forbid(row, self._path[-1])
        self._allow_end(row, allowed=self._matcher.is_accepting())

    def _allow_end(self, row: MaskRow, *, allowed: bool) -> None:
        words = row.view(np.uint32)
        for eos in self._grammar.vocabulary.eos_ids:
            bit = np.uint32(1 << (eos & 31))
            words[eos >> 5] = words[eos >> 5] | bit if allowed else words[eos >> 5] & ~bit

    def accept(self, token_id: int) -> bool:
        if self._terminated:
            return True
        if token_id in self._grammar.vocabulary.eos_ids:
            self._terminated = self._matcher.is_accepting()
            return self._terminated
        forced = self.forced_tokens()
        if forced and forced[0] != token_id:
            return False
        return self._consume(token_id)

    def accept_within(self, token_id: int, budget: int) -> int | None:
        if self._states is None or self._terminated:
            return token_id if self.accept(token_id) else None
        if not self.accept(token_id):
            return None
        if self._terminated or self._ends_within(self._path[-1], budget):
            return token_id
        self.rollback(1)
        place = self._path[-1]
        if math.isinf(self._left(place)):
            return token_id if self.accept(token_id) else None
        instead = min(self._grammar.vocabulary.eos_ids) if place.onward is None else place.onward.token_id
        return instead if self.accept(instead) else None

    def shortest_close(self) -> list[int] | None:
        if self._states is None:
            return None
        if self._terminated:
            return []
        place = self._path[-1]
        return None if math.isinf(self._left(place)) else list(place.way())

    def rollback(self, count: int) -> None:
        if not 0 <= count <= self.num_tokens:
            raise ValueError(f"cannot undo {count} of {self.num_tokens} tokens")
        if count and self._terminated:
            self._terminated = False
            count -= 1
        if count:
            del self._tokens[-count:]
            del self._path[-count:]
            if not self._matcher.rollback(count):
                self._recover()

    def fork(self) -> Self:
        copy = type(self)(self._grammar, self._matcher.deep_copy())
        copy._tokens = self._tokens.copy()
        copy._path = self._path.copy()
        copy._terminated = self._terminated
        return copy

    def forced_tokens(self) -> list[int]:
        if self._terminated:
            return []
        if self._states is None:
            return self._matcher.compute_ff_tokens()
        place = self._path[-1]
        if place.forced is None:
            forced = self._matcher.compute_ff_tokens()
            if self._matcher.is_error():
                return []
            place.forced = forced
        return place.forced

    def _consume(self, token_id: int) -> bool:
        """Advance engine and state by a token, both or neither."""
        if self._states is not None:
            texts = self._grammar.vocabulary.token_bytes
            if token_id >= len(texts) or not texts[token_id]:
                return False
            try:
                state = self._states.after(self._path[-1], texts[token_id])
            except (RepeatedError, OffGrammarError):
                return False
        if self._matcher.try_consume_tokens([token_id]) != 1:
            if not self._matcher.is_error():
                return False
            self._recover()
            if self._matcher.try_consume_tokens([token_id]) != 1:
                return False
        self._tokens.append(token_id)
        if self._states is not None:
            self._path.append(state)
        return True

    def _ends_within(self, place: State[Any], budget: int) -> bool:
        """Whether the text can be whole after `budget` more tokens."""
        # A token is at least a byte long.
        if place.size <= budget:
            return True
        left = self._left(place)
        return budget >= _FAR if math.isinf(left) else left <= budget

    def _left(self, place: State[Any]) -> float:
        """Tokens to the end from where the matcher is; infinite if no way is found."""
        if place.left is None:
            assert self._states is not None
            find_way(self._states, place, self._matcher.deep_copy(), self._grammar.vocabulary)
        return math.inf if place.left is None else place.left

    def _recover(self) -> None:
        self._matcher = self._grammar.rebuild(self._tokens)
