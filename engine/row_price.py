"""What one more row adds to a step that only decodes, and how many go unnoticed, measured.

Tokens that a grammar dictates need not be sampled, so all of them can run in one step; but every answer in
that step waits for them. What that costs is between nothing (a GPU that waits for memory) and as much as any
other row (a CPU that is busy as it is). It is the slope of a regression of the time of steps on their tokens,
which forgets old steps:

    seconds = base + tokens * row_s
"""

from __future__ import annotations

from engine.moments import Moments

_UNNOTICED = 0.01
"""Share of a step's time: steps vary more than that by themselves. Prices are not known exactly, and answers
that come sooner make room for other prompts sooner."""
_KEPT = 255 / 256
"""Weight of a step against the one after it. Prices change little; what a step takes besides, a lot."""
_LEAST_VARIANCE = 1e-6
"""Of tokens. Where every step has as many, rounding is all that is left of it."""


class RowPrice:
    """The regression. Nothing is known at first: then everything is free, which soon shows its price."""

    def __init__(self) -> None:
        self._moments = Moments(_KEPT)
        """Of the tokens of steps and their seconds."""

    def learn(self, tokens: int, seconds: float) -> None:
        """A step of so many tokens, none of a prompt, took `seconds`."""
        self._moments.add(tokens, seconds)

    def unnoticed(self, tokens: int, most: int) -> int:
        """How many more tokens, up to `most`, a step of `tokens` has room for."""
        share = self.share(tokens)
        return min(most, int(_UNNOTICED / share)) if share else most

    def share(self, tokens: int) -> float:
        """What one more token adds to a step of `tokens`, as a share of its time; 0 if that is not known."""
        if not self._moments.is_known:
            return 0.0
        (x, y), (variance, covariance) = self._moments.means, self._moments.spread
        if variance <= _LEAST_VARIANCE or covariance <= 0:
            return 0.0
        row_s = covariance / variance
        base_s = max(0.0, y - row_s * x)
        return row_s / (base_s + row_s * tokens)
