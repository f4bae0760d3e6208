"""A sequence's place in a grammar over llguidance.

What the library leaves to its caller is done here: several end-of-sequence ids, a refused token that leaves
the state as it was, and recovery from error states.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from llguidance import LLMatcher

from grammars.base import GrammarError, MaskRow
from grammars.states import State, nowhere
from grammars.tracking import OffGrammarError, RepeatedError
from grammars.ways import find_way, try_way

if TYPE_CHECKING:
    from grammars.llg import LlgGrammar

TOO_COMPLEX_HERE = "the grammar is too complex to be followed at this place"
_FAR = 1 << 12
"""With this many tokens left, an end that is not found is no reason to steer."""
_MOST_BEHIND = 256
"""So many tokens at once the engine is fed without anyone noticing."""


class LlgMatcher:
    """One sequence's place in a grammar; see `grammars.base.Matcher`.

    What is known of a place is not asked of the engine again, which is therefore fed tokens only when
    something is asked of it, and made only then: it may take milliseconds, and a request may have a thousand
    sequences.
    """

    def __init__(self, grammar: LlgGrammar) -> None:
        self._grammar = grammar
        self._states = grammar.states
        # Without states every place is one of its own.
        self._rows = grammar.rows if grammar.states else None
        self._lengths = grammar.vocabulary.plain_lengths
        self._matcher: LLMatcher | None = None
        self._fed = 0
        """How many of the tokens the engine has seen."""
        self._tokens: list[int] = []
        # One more than tokens: the first is the start.
        self._path: list[State[Any]] = [grammar.states.start if grammar.states else nowhere()]
        self._terminated = False

    @property
    def num_tokens(self) -> int:
        return len(self._tokens) + self._terminated

    @property
    def is_complete(self) -> bool:
        return self._terminated or self._place().may_end

    @property
    def is_exhausted(self) -> bool:
        return self._terminated or self._place().must_end

    @property
    def is_terminated(self) -> bool:
        return self._terminated

    def fill_mask(self, row: MaskRow) -> None:
        if self._terminated:
            row[:] = 0
            self._allow_end(row, allowed=True)
            return
        kept = self.kept_mask()
        if kept is not None:
            row[:] = kept
            return
        self._compute_mask(row)
        if self._rows is not None:
            self._rows.put(self._path[-1], row)

    def kept_mask(self) -> MaskRow | None:
        return None if self._rows is None or self._terminated else self._rows.get(self._path[-1])

    def _compute_mask(self, row: MaskRow) -> None:
        place = self._place()
        if place.forced:
            # The engine may mask another token of the same bytes than it goes on with.
            row[:] = 0
            row.view(np.uint32)[place.forced[0] >> 5] = np.uint32(1 << (place.forced[0] & 31))
        else:
            self._compute_free_mask(row)
        if self._states is not None:
            self._states.forbid(row, place)
        self._allow_end(row, allowed=place.may_end)

    def _compute_free_mask(self, row: MaskRow) -> None:
        engine = self._engine()
        engine.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
        if engine.is_error():
            engine = self._recover()
            engine.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
            if engine.is_error():
                raise GrammarError(TOO_COMPLEX_HERE)

    def _allow_end(self, row: MaskRow, *, allowed: bool) -> None:
        words = row.view(np.uint32)
        for eos in self._grammar.vocabulary.eos_ids:
            bit = np.uint32(1 << (eos & 31))
            words[eos >> 5] = words[eos >> 5] | bit if allowed else words[eos >> 5] & ~bit

    def accept(self, token_id: int) -> bool:
        if self._terminated:
            return True
        after = self._after_allowed(token_id)
        if after is None:
            place = self._place()
            if token_id in self._grammar.vocabulary.eos_ids:
                self._terminated = place.may_end
                return self._terminated
            after = self._after(place, token_id)
            if after is None or not self._allows(place, token_id):
                return False
            if self._rows is not None and self._states is not None:
                self._states.allow(place, self._alike(place, token_id), after)
        self._go(token_id, after)
        return True

    def _after_allowed(self, token_id: int) -> State[Any] | None:
        """The place after a token that is known to be allowed; None if that is not known."""
        if self._states is None or self._terminated or not 0 <= token_id < len(self._lengths):
            return None
        place = self._path[-1]
        return self._states.after_allowed(place, self._alike(place, token_id))

    def _alike(self, place: State[Any], token_id: int) -> int:
        """The same for tokens that, from a place, lead to the same one and are allowed or not together."""
        length = self._lengths[token_id] if place.most_counted else 0
        return -min(length, place.most_counted) or token_id

    def _go(self, token_id: int, after: State[Any]) -> None:
        """Take a token that is allowed."""
        self._tokens.append(token_id)
        self._path.append(after)
        if len(self._tokens) - self._fed >= _MOST_BEHIND:
            self._engine()

    def accept_within(self, token_id: int, budget: int) -> int | None:
        after = self._after_allowed(token_id)
        if after is not None and (after.size <= budget or (after.left is not None and after.left <= budget)):
            # What mostly happens, in as little time as it can.
            self._go(token_id, after)
            return token_id
        if not self.accept(token_id):
            return None
        if self._states is None or self._terminated or self._ends_within(self._path[-1], budget):
            return token_id
        self.rollback(1)
        place = self._path[-1]
        if math.isinf(self._left(place)):
            return token_id if self.accept(token_id) else None
        instead = min(self._grammar.vocabulary.eos_ids) if place.onward is None else place.onward.token_id
        return instead if self.accept(instead) else None

    def shortest_close(self) -> list[int] | None:
        if self._terminated:
            return []
        place = self._path[-1]
        return None if math.isinf(self._left(place)) else list(place.way())

    def try_close(self, tokens: Sequence[int]) -> None:
        """Let `shortest_close` be some tokens, or those that must stand for them, if they are fewer."""
        if self._states is not None:
            place = self._path[-1]
            try_way(self._states, place, tokens, self._engine().deep_copy(), self._grammar.vocabulary)

    def rollback(self, count: int) -> None:
        if not 0 <= count <= self.num_tokens:
            raise ValueError(f"cannot undo {count} of {self.num_tokens} tokens")
        if count and self._terminated:
            self._terminated = False
            count -= 1
        if count:
            del self._tokens[-count:]
            del self._path[-count:]
            behind = self._fed - len(self._tokens)
            if behind > 0:
                self._fed = len(self._tokens)
                if not self._engine().rollback(behind):
                    self._recover()

    def fork(self) -> Self:
        copy = type(self)(self._grammar)
        copy._matcher = None if self._matcher is None else self._matcher.deep_copy()
        copy._fed = self._fed
        copy._tokens = self._tokens.copy()
        copy._path = self._path.copy()
        copy._terminated = self._terminated
        return copy

    def forced_tokens(self) -> list[int]:
        return [] if self._terminated else self._place().forced

    def _place(self) -> State[Any]:
        """Where it is, with what the engine knows of that."""
        place = self._path[-1]
        if not place.is_explored:
            engine = self._engine()
            forced = engine.compute_ff_tokens()
            if engine.is_error():
                engine = self._recover()
                forced = engine.compute_ff_tokens()
            may_end = engine.is_accepting()
            place.explored(forced, may_end=may_end, must_end=may_end and engine.is_stopped())
        return place

    def _after(self, place: State[Any], token_id: int) -> State[Any] | None:
        """The place behind a token; None if what has come rules that out, or it is not text."""
        texts = self._grammar.vocabulary.token_bytes
        if self._states is None:
            return nowhere()
        if not 0 <= token_id < len(texts) or not texts[token_id]:
            return None
        try:
            return self._states.after(place, texts[token_id])
        except (RepeatedError, OffGrammarError):
            return None

    def _allows(self, place: State[Any], token_id: int) -> bool:
        """Whether the grammar allows a token next."""
        if place.forced:
            return place.forced[0] == token_id
        known = None if self._rows is None else self._rows.allows(place, token_id)
        return self._feed(token_id) if known is None else known

    def _feed(self, token_id: int) -> bool:
        """Whether the engine takes a token, which it then has seen."""
        engine = self._engine()
        if engine.try_consume_tokens([token_id]) != 1:
            if not engine.is_error():
                return False
            if self._recover().try_consume_tokens([token_id]) != 1:
                return False
        self._fed += 1
        return True

    def _engine(self) -> LLMatcher:
        """The engine's matcher, at this place."""
        if self._matcher is None:
            self._matcher = self._grammar.engine()
        behind = self._tokens[self._fed :]
        if behind:
            self._fed += len(behind)
            if self._matcher.try_consume_tokens(behind) != len(behind):
                return self._recover()
        return self._matcher

    def _ends_within(self, place: State[Any], budget: int) -> bool:
        """Whether the text can be whole after `budget` more tokens."""
        # A token is at least a byte long.
        if place.size <= budget:
            return True
        left = self._left(place)
        return budget >= _FAR if math.isinf(left) else left <= budget

    def _left(self, place: State[Any]) -> float:
        """Tokens to the end from where the matcher is; infinite if no way is found."""
        if place.left is None and self._states is not None:
            find_way(self._states, place, self._engine().deep_copy(), self._grammar.vocabulary)
        return math.inf if place.left is None else place.left

    def _recover(self) -> LLMatcher:
        self._matcher = matcher = self._grammar.rebuild(self._tokens)
        self._fed = len(self._tokens)
        return matcher
