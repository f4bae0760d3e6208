"""Which sequences try guessed tokens: few at a time, for then a step waits for memory, not for products.

    row of a step     [ last token | guess 1 | guess 2 | guess 3 ]
    sampled after it       A            B         C         D
    read               A, and B if A = guess 1, and C if B = guess 2 as well, ...

The keys and values of a guess that was wrong lie beyond the sequence's end, where the next step writes.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from engine.plan import OVERLAP, Plan, Row
from engine.prompt_lookup import PromptLookup
from engine.request import Sequence
from engine.row_price import RowPrice
from engine.sequence_pages import SequencePages

_LEAST_CHANCE = 0.1
"""A token is not tried where the chance is smaller that all up to it are right, however cheap it is."""
_LEAST_TOKENS = 3
"""A text of fewer has said no two tokens before the last two."""


class Speculation:
    """
    Args:
        tokens: that a step tries at most, for all sequences together.
    """

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens

    def add_drafts(self, plan: Plan, pages: SequencePages, price: RowPrice) -> None:
        """Let the rows of a plan that only decodes try tokens, where more are gained than the step costs."""
        rows = list(plan.rows.values())
        # Rows and what they try are as many in any plan.
        most = (self._tokens + 1) // len(rows) - 1 if rows else 0
        if most < 1 or not all(row.decodes and row.samples and _can_guess(row.sequence) for row in rows):
            return
        # In tokens, of which a step without guesses gives one a row.
        cost = price.share(len(rows)) * len(rows)
        drafts = [_draft(row, min(most, row.sequence.remaining), cost) for row in rows]
        tried = sum(len(draft.tokens) for draft in drafts)
        if sum(draft.hoped for draft in drafts) <= OVERLAP * len(rows) + cost * tried:
            return
        for row, draft in zip(rows, drafts, strict=True):
            tokens = draft.tokens[: plan.budget]
            if not tokens:
                continue
            if not pages.extend(row.sequence, row.stop + len(tokens)):
                return
            plan.rows[row.sequence.id] = msgspec.structs.replace(row, draft=tokens)
            plan.budget -= len(tokens)


@dataclass(frozen=True, slots=True)
class _Draft:
    """What a row may try."""

    tokens: tuple[int, ...]
    hoped: float
    """How many of them are right, on average."""


def _can_guess(sequence: Sequence) -> bool:
    """Whether tokens can be sampled several at a time: not where one depends on what was read before it."""
    params = sequence.params
    depends = params.has_penalties or params.bad_words or sequence.matcher is not None
    return not depends and sequence.known >= _LEAST_TOKENS


def _draft(row: Row, most: int, cost: float) -> _Draft:
    sequence = row.sequence
    if sequence.lookup is None:
        sequence.lookup = PromptLookup(sequence.tokens, sequence.num_prompt)
    skip = row.stop - sequence.known
    chance = min(1.0, max(_LEAST_CHANCE, cost))
    tokens = tuple(sequence.lookup.guess(skip=skip, most=most, least_chance=chance))
    return _Draft(tokens, sequence.lookup.hoped(len(tokens)))
