"""Which sequences try guessed tokens: few at a time, for then a step waits for memory, not for products.

    row of a step     [ last token | guess 1 | guess 2 | guess 3 ]
    sampled after it       A            B         C         D
    read               A, and B if A = guess 1, and C if B = guess 2 as well, ...

The keys and values of a guess that was wrong lie beyond the sequence's end, where the next step writes.
"""

from __future__ import annotations

import msgspec

from engine.plan import Plan, Row
from engine.prompt_lookup import PromptLookup
from engine.request import Sequence
from engine.sequence_pages import SequencePages

_LEAST_TOKENS = 3
"""A text of fewer has said no two tokens before the last two."""


class Speculation:
    """
    Args:
        tokens: that a step tries at most, for all sequences together.
    """

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens

    def extend(self, plan: Plan, pages: SequencePages) -> None:
        """Let the rows of a plan that only decodes try tokens."""
        rows = plan.rows.values()
        # Rows and what they try are as many in any plan.
        most = (self._tokens + 1) // len(rows) - 1 if rows else 0
        if most < 1 or not all(row.decodes and row.samples and _can_guess(row.sequence) for row in rows):
            return
        for row in list(rows):
            if draft := _draft(row, min(most, plan.budget, row.sequence.remaining)):
                if not pages.extend(row.sequence, row.stop + len(draft)):
                    return
                plan.rows[row.sequence.id] = msgspec.structs.replace(row, draft=draft)
                plan.budget -= len(draft)


def _can_guess(sequence: Sequence) -> bool:
    """Whether tokens can be sampled several at a time: not where one depends on what was read before it."""
    params = sequence.params
    depends = params.has_penalties or params.bad_words or sequence.matcher is not None
    return not depends and sequence.known >= _LEAST_TOKENS


def _draft(row: Row, most: int) -> tuple[int, ...]:
    sequence = row.sequence
    if sequence.lookup is None:
        sequence.lookup = PromptLookup(sequence.tokens, sequence.num_prompt)
    return tuple(sequence.lookup.guess(skip=row.stop - sequence.known, most=most))
