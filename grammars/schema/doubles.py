"""Numerals as readers take them: as the nearest double (IEEE 754), so that several come to the same number.

Then 0.99999999999999999 is not below 1. Rounding keeps the order of numbers, so bounds that are met may be
closed, but not open ones, nor must anything that is said of one number only. Some readers keep integers as
they are that are written without a point, and compare them with what they have rounded.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

from grammars.regular.ast import (
    EMPTY,
    NOTHING,
    Regex,
    alt,
    chars,
    complement,
    concat,
    intersect,
    literal,
    repeat,
)
from grammars.schema.numbers import Numbers

_MOST_DIGITS = 15
"""Decimals of so many digits are different doubles."""
_LARGEST = 10**_MOST_DIGITS
_ALL_WHOLE = 2**53
"""From here on not every integer is a double."""
_OVERFLOW = 10**308
_DIGIT = chars([(0x30, 0x39)])
_DIGITS = repeat(_DIGIT, 0, None)
_MINUS = repeat(literal("-"), 0, 1)
_NOT_LONG = alt(
    (
        concat((_MINUS, _DIGITS)),
        concat((_MINUS, repeat(_DIGIT, 1, _MOST_DIGITS), literal("."), _DIGITS)),
    )
)
"""Numerals without digits after the point where doubles have none."""


_SHORT = concat(
    (
        _MINUS,
        alt(
            [
                repeat(_DIGIT, 1, _MOST_DIGITS),
                *(
                    concat((repeat(_DIGIT, size, size), literal("."), repeat(_DIGIT, 1, _MOST_DIGITS - size)))
                    for size in range(1, _MOST_DIGITS)
                ),
            ]
        ),
    )
)
"""Numerals that are all different doubles."""


def without_rounded(numbers: Numbers) -> Numbers:
    """The same without what is rounded to an open bound."""
    low, high = numbers.low, numbers.high
    if low is not None and numbers.low_open and _has_neighbours(low):
        numbers = replace(numbers, low=_next(low, math.inf), low_open=False)
    if high is not None and numbers.high_open and _has_neighbours(high):
        numbers = replace(numbers, high=_next(high, -math.inf), high_open=False)
    return numbers


def is_double(value: Fraction) -> bool:
    """Whether a double is exactly this number."""
    return abs(value) < _OVERFLOW and Fraction(float(value)) == value


def rounded_bounds(value: Fraction) -> tuple[Fraction, Fraction]:
    """Of a large number that is written with a point, the least and the largest number it is read as."""
    if not _ALL_WHOLE <= abs(value) < _OVERFLOW:
        return value, value
    rounded = Fraction(float(value))
    return min(value, rounded), max(value, rounded)


def rounded_to(value: Fraction) -> Regex:
    """Plain numerals of many digits near a number: at least those that are rounded to the same."""
    if not _has_neighbours(value):
        return NOTHING
    size = abs(value)
    if size >= _ALL_WHOLE:
        return _large_rounded_to(value)
    # Numbers that are less than half of a double's last place apart agree in so many digits, or nearly so.
    count = max(1, _MOST_DIGITS + 1 - len(str(int(size))))
    last = int(size * 10**count)
    cells = [n for n in (last - 1, last, last + 1) if n >= 0 and (n <= last or size * 10**count != last)]
    sign = literal("-") if value < 0 else EMPTY
    texts = (f"{n // 10**count}.{n % 10**count:0{count}d}" for n in cells)
    return concat((sign, alt(map(literal, texts)), _DIGITS))


def _large_rounded_to(value: Fraction) -> Regex:
    more = len(str(int(abs(value)))) - _MOST_DIGITS
    first = int(abs(value)) // 10**more
    sign = literal("-") if value < 0 else EMPTY
    fraction = repeat(concat((literal("."), _DIGITS)), 0, 1)
    cells = alt(literal(str(n)) for n in (first - 1, first, first + 1))
    return concat((sign, cells, repeat(_DIGIT, more, more), fraction))


def told_apart(text: Regex, numbers: Numbers) -> Regex:
    """Of numerals of `numbers` those that are read as one of them, where that depends on more than bounds."""
    if numbers.whole is False:
        return intersect((text, _FRACTIONAL))
    bounds = [bound for bound in (numbers.low, numbers.high) if bound is not None]
    is_long = any(abs(bound) > _LARGEST for bound in bounds)
    if numbers.off or numbers.step is not None:
        return intersect((text, _SHORT)) if not is_long else intersect((text, _NOT_LONG))
    if is_long or numbers.low_open or numbers.high_open or numbers.without:
        return intersect((text, _NOT_LONG))
    return text


def _fractional() -> Regex:
    """Numerals that are not rounded to integers: the first digits behind the point are not all 0, nor 9."""
    options = []
    for size in range(1, _MOST_DIGITS + 1):
        count = _MOST_DIGITS + 1 - size
        near = alt(concat((repeat(literal(digit), count, count), _DIGITS)) for digit in "09")
        whole = concat((chars([(0x31, 0x39)]), repeat(_DIGIT, size - 1, size - 1)))
        options.append(concat((whole, literal("."), intersect((_DIGITS, complement(near))))))
    nines = concat((repeat(literal("9"), _MOST_DIGITS, _MOST_DIGITS), _DIGITS))
    options.append(concat((literal("0."), intersect((_DIGITS, complement(nines))))))
    return concat((_MINUS, alt(options)))


_FRACTIONAL = _fractional()


def _has_neighbours(value: Fraction) -> bool:
    """Whether numerals of few digits may be rounded to the same."""
    return 0 < abs(value) <= _LARGEST or _ALL_WHOLE <= abs(value) < _OVERFLOW


def _next(value: Fraction, towards: float) -> Fraction:
    """The double next to that of `value`, in the fewest digits that are read as it."""
    return Fraction(repr(math.nextafter(float(value), towards)))
