"""Guesses at what comes next in a text: what came next when it last said the same two tokens.

Code, lists, summaries and quotations repeat themselves and their prompt. Guessing costs nothing, and what is
guessed need not be sampled token by token: it is run in one step and compared with what is sampled after each
(prompt lookup decoding: Saxena, 2023; speculative decoding: Leviathan et al., 2023). Nothing of the text
changes, since a token's noise depends on its place alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq

_LATELY = 1 / 8
"""Weight of the last guess in `PromptLookup.hit_rate`."""
_LEAST_HIT_RATE = 0.3
"""Guesses that are right less often do not pay: the next step cannot be planned before this one is read."""
_CERTAIN = 1e-9
"""A rate that is so near to 1 counts as 1."""
_LOOKED_AT = 4096
"""Tokens at the end of a prompt that are looked at."""


class PromptLookup:
    """Guesses for one sequence, whose text is read once, as it grows."""

    def __init__(self, tokens: Seq[int], num_prompt: int) -> None:
        """
        Args:
            tokens: known ids, prompt and output; may grow.
            num_prompt: how many are the prompt's.
        """
        self._tokens = tokens
        self._num_prompt = num_prompt
        self._read = max(2, len(tokens) - _LOOKED_AT)
        self._after: dict[tuple[int, int], int] = {}
        """Where the token after two tokens is, of those read."""
        self.hit_rate = 0.5
        """How often, of late, a guess at the next token of the output was right, or would have been."""

    def guess(self, *, skip: int, most: int, least_chance: float) -> list[int]:
        """The next tokens as far as they are likely enough, `most` at most.

        Args:
            skip: tokens right after the known ones that are not wanted.
            least_chance: that all guesses up to one are right, for it to be worth a try; above 0, at most 1.
        """
        self._read_on()
        if self.hit_rate < _LEAST_HIT_RATE:
            return []
        likely = most
        if self.hit_rate < 1 - _CERTAIN:
            likely = int(math.log(least_chance) / math.log(self.hit_rate))
        place = self._after.get((self._tokens[-2], self._tokens[-1]))
        if place is None:
            return []
        guessed: list[int] = []
        known = len(self._tokens)
        for at in range(place, place + skip + min(most, likely)):
            # Text that goes round in a circle is guessed from what was guessed.
            guessed.append(self._tokens[at] if at < known else guessed[at - known])
        return guessed[skip:]

    def hoped(self, guesses: int) -> float:
        """How many of the next so many guesses are right, on average: all before the first that is not."""
        rate = self.hit_rate
        return rate * (1 - rate**guesses) / (1 - rate) if rate < 1 - _CERTAIN else guesses

    def _read_on(self) -> None:
        tokens, after = self._tokens, self._after
        for at in range(self._read, len(tokens)):
            pair = (tokens[at - 2], tokens[at - 1])
            if at >= self._num_prompt and (guess := after.get(pair)) is not None:
                self.hit_rate += _LATELY * ((tokens[guess] == tokens[at]) - self.hit_rate)
            after[pair] = at
        self._read = max(self._read, len(tokens))
