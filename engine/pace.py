"""How much of long prompts a step may run while answers are decoded: what fits the time it should take.

Every answer waits for the step, whoever's prompt it runs. What a token of a prompt costs depends on the
machine, the model and the tokens before it, so it is not calculated: the limit follows what steps took.
"""

from __future__ import annotations

_FEWEST = 16
"""Tokens: prompts go on whatever steps take."""
_GROWTH = 1.25
_WEIGHT = 0.3
"""Of a new measurement in the running mean."""
_FRESH = 64
"""Steps after which one is spent on decoding alone if none was, to know how long that takes now."""


class Pace:
    """The limit on the prompt tokens of a step that also decodes.

    The aim is `aim_s`, or twice a step that only decodes if that is longer: gaps at most double.

    Args:
        aim_s: longest step wanted (seconds); 0.0: any, so there is no limit.
        most: the limit to begin with, and the highest (tokens).
    """

    def __init__(self, aim_s: float, most: int) -> None:
        self._aim_s = aim_s
        self._most = most
        self._limit = most
        self._decode_s = 0.0
        """Running mean of steps that only decode."""
        self._steps = 0
        """Since the last of them."""

    @property
    def prompt_tokens(self) -> int:
        """The present limit; 0 now and then."""
        return self._limit if self._steps < _FRESH else 0

    def ran(self, *, prompt_tokens: int, seconds: float) -> None:
        """A step that decoded ran `prompt_tokens` besides, and took `seconds`."""
        if not self._aim_s:
            return
        if not prompt_tokens:
            self._decode_s += _WEIGHT * (seconds - self._decode_s)
            self._steps = 0
            return
        self._steps += 1
        aim_s = max(self._aim_s, 2 * self._decode_s)
        # What was far below the limit and took no longer than it should says nothing about the limit.
        if seconds > aim_s or prompt_tokens >= self._limit / _GROWTH:
            # Decoding takes its time however few tokens of prompts there are.
            added_s = max(seconds - self._decode_s, 1e-6)
            fitting = int(prompt_tokens * (aim_s - self._decode_s) / added_s)
            highest = min(self._most, int(self._limit * _GROWTH))
            self._limit = max(_FEWEST, min(fitting, highest))
