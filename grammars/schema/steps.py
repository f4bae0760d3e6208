"""Multiples of a number whose digits tell: the last ones if its only prime factors are 2 and 5, and their sum
if 3 is one, too."""

from __future__ import annotations

import math
from fractions import Fraction

from grammars.regular.ast import EMPTY, Regex, alt, chars, concat, intersect, literal, repeat

_MAX_LAST = 4
_DIGIT = chars([(0x30, 0x39)])
_ZEROS = repeat(literal("0"), 0, None)


def _thirds() -> Regex:
    """Digits, points among them, whose sum is a multiple of 3: their automaton with its states eliminated."""
    none, one, two = (chars([(ord(c), ord(c)) for c in text]) for text in ("0369.", "147", "258"))
    any_none = repeat(none, 0, None)
    to_two = alt((two, concat((one, any_none, one))))
    at_two = alt((none, concat((two, any_none, one))))
    from_two = alt((one, concat((two, any_none, two))))
    return repeat(
        alt((none, concat((one, any_none, two)), concat((to_two, repeat(at_two, 0, None), from_two)))),
        0,
        None,
    )


_THIRDS = _thirds()


def multiples_text(step: Fraction, *, sums: bool) -> Regex | None:
    """Every plain numeral without sign of a multiple of `step`; None if its digits do not tell.

    Leading zeros are not ruled out here.

    Args:
        sums: look at the sum of an integer's digits, too, though the engine has multiples of integers.
    """
    if (sums or step.denominator != 1) and step.numerator % 3 == 0:
        # Wherever the point is: 3 divides the same powers of ten times a number.
        multiples = _by_last_digits(step / 3)
        return None if multiples is None else intersect((multiples, _THIRDS))
    return _by_last_digits(step)


def _by_last_digits(step: Fraction) -> Regex | None:
    places = _places(step)
    if places is None:
        return None
    options = []
    for count in range(places + 1):
        # Of a numeral with `count` digits after its point, the digits as one integer are a multiple of this.
        whole = step * 10**count
        modulus = whole.numerator
        last = _last_digits(modulus)
        if last is None:
            return None
        options += [_with_point(text, count) for text in _endings(modulus, last)]
    return alt(options)


def _places(step: Fraction) -> int | None:
    """The fewest digits after the point with which every multiple can be written."""
    return next((n for n in range(_MAX_LAST + 1) if (step * 10**n).denominator == 1), None)


def _last_digits(modulus: int) -> int | None:
    """How many last digits tell whether an integer is a multiple of `modulus`."""
    return next((n for n in range(_MAX_LAST + 1) if 10**n % modulus == 0), None)


def _endings(modulus: int, last: int) -> list[str]:
    """The last digits of multiples, and, marked with ^, multiples that have fewer digits."""
    values = range(0, 10**last, modulus)
    return [f"{value:0{last}d}" if last else "" for value in values] + [f"^{value}" for value in values]


def _with_point(ending: str, count: int) -> Regex:
    """Numerals with this ending, `count` digits of which stand after the point, zeros behind them."""
    short = ending.startswith("^")
    digits = ending.removeprefix("^")
    if short:
        digits = digits.rjust(count + 1, "0")
    lead = EMPTY if short else repeat(_DIGIT, max(0, count + 1 - len(digits)), None)
    if count == 0:
        return concat((lead, literal(digits), repeat(concat((literal(".0"), _ZEROS)), 0, 1)))
    if len(digits) > count:
        return concat((lead, literal(digits[:-count] + "." + digits[-count:]), _ZEROS))
    between = repeat(_DIGIT, count - len(digits), count - len(digits))
    return concat((repeat(_DIGIT, 1, None), literal("."), between, literal(digits), _ZEROS))


def lcm_step(steps: list[Fraction]) -> Fraction:
    """The least positive number that is a multiple of each."""
    first, *others = steps
    for step in others:
        denominator = math.lcm(first.denominator, step.denominator)
        first = Fraction(
            math.lcm(
                first.numerator * (denominator // first.denominator),
                step.numerator * (denominator // step.denominator),
            ),
            denominator,
        )
    return first
