"""Grammars over llguidance.

Its error states never heal and, since copies of a matcher share one lexer, can spread to every sequence of a
grammar. A matcher in an error state is rebuilt with more room and fed its tokens again.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from llguidance import LLMatcher, LLParserLimits

from grammars.base import GrammarError
from grammars.llg_matcher import TOO_COMPLEX_HERE, LlgMatcher
from grammars.lower import Lowered, Sentences
from grammars.recursive_tables import RecursiveTables
from grammars.recursive_tracker import RecursiveTracker
from grammars.rows import RowCache
from grammars.schema.tables import Tables
from grammars.states import STATES_BYTES, States
from grammars.tag_tables import TagTables
from grammars.tag_tracker import TagTracker
from grammars.tracking import JsonTracker, RegexTracker, Tracker
from grammars.vocab import Vocabulary

_FUEL_FACTOR = 5
_STATES = 100_000
_BASE_BYTES = (1 << 19) + STATES_BYTES
_BYTES_PER_CHAR = 100
_MANY_ITEMS = re.compile(r"Current row has \d+ items|Too many items")
_MANY_STATES = re.compile(r"too many|fuel exhausted", re.IGNORECASE)
_PLACE = re.compile(r"(?:at )?(\d+)\((\d+)\): ")


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
    error = matcher.get_error().partition("\n")[0].removesuffix(" (in regex): regex parse error:")
    if error == "NoExtensionBias":
        return "no text satisfies the grammar"
    if error.startswith("panic"):
        return "grammar too complex: the engine gave up"
    # The numbers and the advice that come with these are about grammars as the engine has them.
    if _MANY_ITEMS.search(error):
        return "grammar too complex: too much may come next at one place"
    if _MANY_STATES.search(error):
        return "grammar too complex: its patterns and counts take too many states"
    return _PLACE.sub(r"line \1, column \2: ", error, count=1)


class LlgGrammar:
    """A compiled grammar. Matchers are copies of a template, unless the grammar is heavy.

    Args:
        vocabulary: of the model.
        lowered: the grammar, in llguidance's own format, and what is known of its sentences.
        heavy: it needs more lexer fuel than usual; its matchers share nothing, so that one that
            runs out does not take others along.
        rows: where masks are kept; None: nowhere.
        way: few tokens that may make a whole sentence (`grammars.few_tokens`).

    Raises:
        GrammarError: the engine refuses it.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        lowered: Lowered,
        *,
        heavy: bool = False,
        rows: RowCache | None = None,
        way: Sequence[int] = (),
    ) -> None:
        self.vocabulary = vocabulary
        self.heavy = heavy
        # Places that no two sequences come to are not worth it.
        shared = not isinstance(lowered.sentences, RecursiveTables) or lowered.sentences.exact
        self.rows = rows if shared else None
        self._way = way
        self._tracker = tracker_of(lowered.sentences, vocabulary)
        self.states = States(self._tracker) if self._tracker else None
        self._source = lowered.source
        self._lock = threading.Lock()
        self._template = self._build(heavy=heavy)

    @property
    def nbytes(self) -> int:
        return _BASE_BYTES + _BYTES_PER_CHAR * len(self._source)

    @cached_property
    def min_tokens(self) -> int | None:
        matcher = self.matcher()
        close = matcher.shortest_close()
        if close is not None and self._way:
            matcher.try_close(self._way)
            close = matcher.shortest_close()
        if self.states is not None:
            self.states.forget()  # what was seen on the way, so that it is remembered itself
        return None if close is None else len(close)

    def matcher(self) -> LlgMatcher:
        return LlgMatcher(self)

    def rebuild(self, tokens: list[int]) -> LLMatcher:
        """A fresh engine matcher with the most fuel, after `tokens`; later matchers start afresh too.

        Raises:
            GrammarError: it fails even so.
        """
        with self._lock:
            self.heavy = True
            self._template = self._build(heavy=True)
        matcher = self.engine()
        if matcher.try_consume_tokens(tokens) != len(tokens) or matcher.is_error():
            raise GrammarError(TOO_COMPLEX_HERE)
        return matcher

    def engine(self) -> LLMatcher:
        """An engine matcher at the start."""
        if self.heavy:
            return self._build(heavy=True)
        with self._lock:
            return self._template.deep_copy()

    def _build(self, *, heavy: bool) -> LLMatcher:
        matcher = LLMatcher(self.vocabulary.tokenizer, self._source, log_level=0, limits=limits(heavy=heavy))
        if matcher.is_error() or not any(matcher.compute_bitmask()):
            raise GrammarError(complaint(matcher) or "no text satisfies the grammar")
        return matcher


def tracker_of(sentences: Sentences | None, vocabulary: Vocabulary) -> Tracker[Any] | None:
    """What follows the sentences of a grammar, if anything can."""
    match sentences:
        case None:
            return None
        case Tables():
            return JsonTracker(sentences, vocabulary)
        case TagTables():
            return TagTracker(sentences, vocabulary)
        case RecursiveTables():
            return RecursiveTracker(sentences)
        case _:
            return RegexTracker(sentences)
