"""What a token of a prompt adds to a step, measured.

That depends on the machine, the model, its kernels and on the tokens before it, which it attends to:

    seconds = tokens * own_s + attended * context_s      attended: pairs of a token and one before it

It is a linear regression of a token's time on its context that forgets old steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from engine.moments import Moments

_KEPT = 63 / 64
"""Weight of a step against the one after it."""
_TOO_DEAR = 4.0
_TIMES = 3
"""So many steps, one after another, that should have taken so many times as long: a step that was held up by
something else is soon forgotten, while any that shows too low a price counts at once."""
_DOUBLING = 4096.0
"""Tokens of context that double the price, as far as that is not measured..."""
_SPREAD = 512.0
"""...at contexts that differ by more than so many tokens."""
_LEAST_OWN = 0.1
"""Share of the mean price that a token costs without any context, at least."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens of a prompt that one step runs."""

    tokens: int
    context: int
    """Tokens of the prompt before them."""

    @property
    def attended(self) -> float:
        return self.tokens * (self.context + self.tokens / 2)


class TokenPrice:
    """The regression. Nothing is known at first: then everything is free."""

    def __init__(self) -> None:
        self._too_dear = 0
        """Steps, the last ones, that showed too high a price."""
        self._forget()

    @property
    def is_known(self) -> bool:
        return self._moments.is_known

    @property
    def is_doubted(self) -> bool:
        """Whether the last step showed too high a price for the first time."""
        return self._too_dear == 1

    def cost_s(self, tokens: float, attended: float) -> float:
        return tokens * self._own_s + attended * self._context_s

    def fitting(self, context: int, seconds: float) -> float:
        """How many tokens behind `context` take `seconds`."""
        first_s = self._own_s + context * self._context_s
        # The root n of: n * first_s + n * n / 2 * context_s = seconds.
        root = math.sqrt(first_s * first_s + 2 * self._context_s * seconds)
        return 2 * seconds / (first_s + root) if root else math.inf

    def learn(self, chunks: Sequence[Chunk], seconds: float) -> None:
        """A step ran `chunks`, which took `seconds` of its time."""
        tokens = sum(chunk.tokens for chunk in chunks)
        attended = sum(chunk.attended for chunk in chunks)
        too_dear = self.cost_s(tokens, attended) > _TOO_DEAR * seconds
        self._too_dear = self._too_dear + 1 if too_dear else 0
        if self._too_dear == _TIMES:
            self._too_dear = 0
            self._forget()
        self._moments.add(attended / tokens, seconds / tokens)
        self._fit()

    def _forget(self) -> None:
        self._moments = Moments(_KEPT)
        """Of contexts and the times of a token behind them."""
        self._own_s = self._context_s = 0.0

    def _fit(self) -> None:
        (x, y), (variance, covariance) = self._moments.means, self._moments.spread
        # Ridge regression towards the slope that is supposed.
        supposed = y / (x + _DOUBLING)
        slope = (covariance + _SPREAD**2 * supposed) / (variance + _SPREAD**2)
        self._context_s = min(max(slope, 0.0), (1 - _LEAST_OWN) * y / x) if x else supposed
        self._own_s = y - self._context_s * x
