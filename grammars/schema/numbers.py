"""Sets of numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction

from grammars.schema.errors import UnenforceableError
from grammars.schema.steps import lcm_step, multiples_text


@dataclass(frozen=True, slots=True)
class Numbers:
    """The numbers between two bounds, of which some may be taken out.

    Attributes:
        low, high: bounds; None: none.
        low_open, high_open: the bound itself is outside.
        whole: True for integers only, False for all others only, None for both.
        step: every number is a multiple of it; None: no such rule.
        without: single numbers that are outside.
        off: no number is a multiple of one of these, whose multiples can be told by their digits.
        pointed: integers may be written with a point, as in 5.0, whatever the options say.
    """

    low: Fraction | None = None
    low_open: bool = False
    high: Fraction | None = None
    high_open: bool = False
    whole: bool | None = None
    step: Fraction | None = None
    without: frozenset[Fraction] = frozenset()
    off: frozenset[Fraction] = frozenset()
    pointed: bool = False

    def __contains__(self, value: Fraction) -> bool:
        return not (
            (self.low is not None and (value < self.low or (self.low_open and value == self.low)))
            or (self.high is not None and (value > self.high or (self.high_open and value == self.high)))
            or (self.whole is not None and (value.denominator == 1) != self.whole)
            or (self.step is not None and (value / self.step).denominator != 1)
            or value in self.without
            or any((value / step).denominator == 1 for step in self.off)
        )

    def meet(self, other: Numbers) -> Numbers | None:
        """The numbers in both; None when there are clearly none."""
        if self.whole is not None and other.whole is not None and self.whole != other.whole:
            return None
        low, low_open = _tighter((self.low, self.low_open), (other.low, other.low_open), 1)
        high, high_open = _tighter((self.high, self.high_open), (other.high, other.high_open), -1)
        steps = [step for step in (self.step, other.step) if step is not None]
        both = Numbers(
            low,
            low_open,
            high,
            high_open,
            other.whole if self.whole is None else self.whole,
            lcm_step(steps) if steps else None,
            self.without | other.without,
            self.off | other.off,
            self.pointed or other.pointed,
        )
        return None if both._is_empty() else both._settled()

    def outside(self) -> list[Numbers]:
        """Sets that together hold every other number.

        Raises:
            UnenforceableError: for a `step` whose multiples cannot be told by their digits.
        """
        rest = [Numbers(low=value, high=value) for value in sorted(self.without)]
        rest += [Numbers(step=step) for step in sorted(self.off)]
        if self.step is not None:
            if multiples_text(self.step, sums=True) is None:
                raise UnenforceableError("multipleOf cannot be negated", "multipleOf")
            rest.append(Numbers(off=frozenset({self.step})))
        if self.low is not None:
            rest.append(Numbers(high=self.low, high_open=not self.low_open))
        if self.high is not None:
            rest.append(Numbers(low=self.high, low_open=not self.high_open))
        if self.whole is not None:
            rest.append(Numbers(whole=not self.whole))
        return rest

    def _is_empty(self) -> bool:
        if self.low is None or self.high is None:
            return False
        if self.low == self.high:
            return self.low not in self
        first, last = self.integers() if self.whole else (0, 0)
        return self.low > self.high or (first is not None and last is not None and first > last)

    def _settled(self) -> Numbers:
        """The same set with a step that says no more than `whole` does left out."""
        if self.step is None or self.whole is not True:
            return self
        step = self.step.numerator  # of a reduced p/q, the integers among the multiples are those of p
        return replace(self, step=None if step == 1 else Fraction(step))

    def integers(self) -> tuple[int | None, int | None]:
        """The first and the last integer within the bounds; None where there is no bound."""
        first = last = None
        if self.low is not None:
            first = math.ceil(self.low)
            first += self.low_open and first == self.low
        if self.high is not None:
            last = math.floor(self.high)
            last -= self.high_open and last == self.high
        return first, last


def _tighter(
    mine: tuple[Fraction | None, bool], theirs: tuple[Fraction | None, bool], sign: int
) -> tuple[Fraction | None, bool]:
    """The stricter of two lower bounds (sign 1) or upper bounds (sign -1)."""
    (a, a_open), (b, b_open) = mine, theirs
    if a is None or b is None:
        return (b, b_open) if a is None else (a, a_open)
    if a == b:
        return a, a_open or b_open
    return (a, a_open) if (a > b) == (sign > 0) else (b, b_open)
