"""How much of long prompts a step may run while answers are decoded: what fits the time it should take.

Every answer waits for the step, whoever's prompt it runs. So both are measured: what a step takes that only
decodes, and what a token of a prompt adds to it (`engine.token_price`).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from statistics import median

from engine.token_price import Chunk, TokenPrice

_FEWEST = 4
"""Tokens: prompts go on whatever steps take. Fewer cost nearly as much, as a step reads the whole context."""
_GROWTH = 2
"""From one step to the next: where a price is wrong, one step shows it."""
_FRESH = 24
"""Steps after which one is spent on decoding alone if none was, to know how long that takes now."""
_RECENT = 3
"""How many of those are remembered. Their median counts: one may have been held up by something else."""
_LEAST_ADDED = 0.05
"""Share of it that a chunk adds, for all that can be told: steps are not that even."""
_LONG_STEPS = 4
"""Prompts of more whole steps than that are paced. Others would lose more throughput by it, as they decode
sooner than they slow down anybody for long."""
_REST = 8
_REST_STEPS = 3
"""The rest of a long prompt of which most is cached may add so many times as much in one of so many steps. It
is soon run, and who goes on with a conversation would wait long; but its tokens attend to all the others."""
_COMPARABLE = 2
"""Steps with more than so many times the tokens that fit say nothing about the price of few."""
_PATIENCE = 2
"""Steps in a row that are left to other prompts which fill more than half of what may be added..."""
_SHARE = 0.25
"""...and of more such steps paced prompts may add that much of the others' time: without it they would hardly
get on where there are many."""


class Pace:
    """What paced prompts may add to a step that also decodes.

    Args:
        aim: how long such a step should take at most, as a multiple of one that only decodes; 0.0: any.
        most: tokens of a step at most.
    """

    def __init__(self, aim: float, most: int) -> None:
        self.long = _LONG_STEPS * most
        """Tokens: a prompt that has more to run is paced, the tokens behind more are its rest."""
        self._aim = aim
        self._most = most
        self._price = TokenPrice()
        self._last = _FEWEST
        """Tokens of paced prompts in the last step that had any."""
        self._decode_s = deque[float](maxlen=_RECENT)
        """Steps that only decoded."""
        self._steps = 0
        """Planned since the last of them."""
        self._left = 0
        """Steps, the last ones, that other prompts filled."""
        self._since_rest = 0
        """Steps planned since one with the rest of a cached prompt, that one included."""

    def allowance(self, *, in_progress: bool) -> Allowance | None:
        """For the next step that decodes; None: it should do nothing else, so that is measured.

        Args:
            in_progress: whether there is a paced prompt that was begun.
        """
        if not self._aim:
            return self.unlimited()
        if in_progress and (not self._decode_s or self._steps >= _FRESH):
            self._steps = 0
            return None
        self._steps += 1
        self._since_rest += 1
        return Allowance(self, self._added_s, min(self._most, _GROWTH * max(_FEWEST, self._last)))

    def unlimited(self) -> Allowance:
        """For a step that nobody waits for."""
        return Allowance(self, math.inf, self._most)

    def cost_s(self, chunk: Chunk) -> float:
        """What a chunk adds to a step."""
        return self._price.cost_s(chunk.tokens, chunk.attended)

    def fitting(self, context: int, seconds: float) -> int:
        """How many tokens behind `context` should take `seconds`; where that is not known, few."""
        if math.isinf(seconds):
            return self._most
        if not self._price.is_known:
            return _FEWEST
        return int(min(self._most, self._price.fitting(context, seconds)))

    def plan(self, tokens: int) -> None:
        """The next step runs so many tokens of paced prompts."""
        self._last = tokens

    def leave_step(self) -> bool:
        """Other prompts fill the next step; returns whether it is left to them."""
        self._left += 1
        return self._left <= _PATIENCE

    @property
    def may_run_rest(self) -> bool:
        """Whether the next step may run the rests of long prompts of which most is cached."""
        return self._since_rest >= _REST_STEPS

    def run_rest(self) -> None:
        """The next step runs one."""
        self._since_rest = 0

    def take_step(self) -> None:
        """Other prompts do not fill the next step, and paced ones run in it."""
        self._left = 0

    def ran(self, chunks: Sequence[Chunk], seconds: float) -> None:
        """A step that decoded ran `chunks` of prompts besides, and took `seconds`."""
        if not self._aim:
            return
        if not chunks:
            self._decode_s.append(seconds)
            self._steps = 0
        elif self._decode_s and (not self._price.is_known or self._is_comparable(chunks)):
            decode_s = median(self._decode_s)
            self._price.learn(chunks, max(seconds - decode_s, _LEAST_ADDED * decode_s))
            if self._price.is_doubted:
                # Or decoding takes less than it did.
                self._steps = _FRESH

    @property
    def _added_s(self) -> float:
        return max(0.0, self._aim - 1) * median(self._decode_s) if self._decode_s else 0.0

    def _is_comparable(self, chunks: Sequence[Chunk]) -> bool:
        tokens = sum(chunk.tokens for chunk in chunks)
        context = int(sum(chunk.attended for chunk in chunks) / tokens)
        times = _REST if context > self.long else 1
        return tokens <= _COMPARABLE * max(_FEWEST, self.fitting(context, times * self._added_s))


class Allowance:
    """The seconds that paced prompts may add to one step, and the tokens they may run in it at most."""

    def __init__(self, pace: Pace, seconds: float, most: int) -> None:
        self._pace = pace
        self._seconds = seconds
        self._most = most
        self._others_s = 0.0
        """What other prompts add."""
        self._may_run_rest = math.isinf(seconds) or pace.may_run_rest
        self._rests_s = 0.0
        """What the rests of long cached prompts add of the others' seconds."""
        self._spent_s = 0.0
        self._tokens = 0
        """Those of paced prompts."""
        self._leaves: bool | None = None
        """Whether the step is left to other prompts, once they fill it."""

    def tokens(self, context: int) -> int:
        """How many tokens a paced prompt may run behind `context`."""
        least_s = self._seconds / 2
        if not self._tokens and self._others_s > least_s:
            if self._leaves is None:
                self._leaves = self._pace.leave_step()
            if self._leaves:
                return 0
        left_s = max(self._seconds - self._others_s, least_s, _SHARE * self._others_s) - self._spent_s
        fitting = min(self._most - self._tokens, self._pace.fitting(context, max(0.0, left_s)))
        if not self._tokens:
            return max(_FEWEST, fitting)
        return fitting if fitting >= _FEWEST else 0

    def rest(self, context: int) -> int:
        """How many tokens of the rest of a long prompt may run behind `context`, which was cached."""
        if not self._may_run_rest:
            return 0
        fitting = self._pace.fitting(context, max(0.0, _REST * self._seconds - self._rests_s))
        if not self._rests_s:
            return max(_FEWEST, fitting)
        return fitting if fitting >= _FEWEST else 0

    def spend(self, chunk: Chunk, *, paced: bool) -> None:
        """A prompt runs a chunk in the step."""
        if paced:
            self._tokens += chunk.tokens
            self._spent_s += self._pace.cost_s(chunk)
            self._pace.plan(self._tokens)
            if self._leaves is None:
                self._pace.take_step()
        else:
            cost_s = self._pace.cost_s(chunk)
            self._others_s += cost_s
            if chunk.context > self._pace.long:
                self._rests_s += cost_s
                self._pace.run_rest()
