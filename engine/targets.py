"""Tokens of known text whose log-probabilities are wanted."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Targets:
    """Target i asks how likely `token_ids[i]` is after the token at `positions[i]`."""

    positions: Sequence[int]
    """Ascending; several targets may be at one position."""
    token_ids: Sequence[int]
    top: int = 0
    """Of so many of the likeliest tokens log-probabilities are wanted too."""

    @classmethod
    def of_prompt(cls, prompt: list[int], top: int) -> Targets:
        """Every token of a prompt but the first."""
        return cls(range(len(prompt) - 1), prompt[1:], top)

    def between(self, start: int, stop: int, *, done: int) -> range:
        """The targets at positions in [start, stop), without the first `done`."""
        first = max(done, bisect_left(self.positions, start))
        return range(first, max(first, bisect_left(self.positions, stop)))
