"""The texts that spell the numbers of a set, as regular languages.

A number is written plainly, `-?digits(.digits)?`, with bounded digits. Only where nothing but the type
is asked may it also have an exponent: then no bound has to be compared with it.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache

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
from grammars.schema.doubles import is_double, rounded_to, told_apart, without_rounded
from grammars.schema.errors import UnenforceableError
from grammars.schema.numbers import Numbers
from grammars.schema.steps import multiples_text
from grammars.spec import JsonOptions

_MOST_LISTED = 512


@lru_cache(maxsize=1024)
def number_text(numbers: Numbers, options: JsonOptions) -> Regex | None:
    """Every spelling of the numbers of a set; None if that is not regular in a manageable way (`step`).

    Raises:
        UnenforceableError: then for a set from which other multiples are taken out.
    """
    writer = _Writer(options)
    if numbers == Numbers():
        return writer.any_number()
    if numbers.low is not None and numbers.low == numbers.high:
        return writer.one(numbers.low, pointed=numbers.pointed) if numbers.low in numbers else NOTHING
    text = told_apart(writer.between(without_rounded(numbers)), numbers)
    if numbers.step is not None:
        multiples = _multiples(numbers.step, sums=bool(numbers.off))
        if multiples is None:
            return writer.multiples(numbers, numbers.step)
        text = intersect((text, multiples))
    for step in sorted(numbers.off):
        multiples = _multiples(step, sums=True)
        assert multiples is not None
        text = intersect((text, complement(multiples)))
    if numbers.without:
        text = intersect((text, complement(alt(map(writer.read_as, sorted(numbers.without))))))
    return text


def _multiples(step: Fraction, *, sums: bool) -> Regex | None:
    """Every plain numeral of a multiple; None if its digits do not tell."""
    multiples = multiples_text(step, sums=sums)
    return None if multiples is None else concat((repeat(literal("-"), 0, 1), multiples))


def plain(value: Fraction) -> str:
    """The plain spelling of a number whose denominator divides a power of ten."""
    sign, value = ("-", -value) if value < 0 else ("", value)
    whole, fraction = _split(value)
    return f"{sign}{whole}.{fraction}" if fraction else f"{sign}{whole}"


def _digits(low: int = 0, high: int = 9) -> Regex:
    return chars([(0x30 + low, 0x30 + high)])


def _split(value: Fraction) -> tuple[int, str]:
    """The integer part and the digits after the point of a non-negative number, without trailing zeros."""
    whole = value.numerator // value.denominator
    rest = value - whole
    digits = []
    while rest:
        rest *= 10
        digit = rest.numerator // rest.denominator
        digits.append(str(digit))
        rest -= digit
    return whole, "".join(digits)


class _Writer:
    """Builds languages of numerals within the bounds on digits."""

    def __init__(self, options: JsonOptions) -> None:
        self._options = options
        self._limit = 10**options.integer_digits - 1
        self._any_fraction = self._fraction(repeat(_digits(), 1, options.fraction_digits))

    def any_number(self) -> Regex:
        """Every number; one digit before the point and any exponent, or any digits and a short one."""
        fraction = repeat(self._any_fraction, 0, 1)
        exponent = concat(
            (chars([(0x45, 0x45), (0x65, 0x65)]), repeat(chars([(0x2B, 0x2B), (0x2D, 0x2D)]), 0, 1))
        )
        # Up to e307, so that no reader's double overflows.
        large = alt(
            (
                repeat(_digits(), 1, 2),
                concat((_digits(1, 2), _digits(), _digits())),
                concat((literal("30"), _digits(0, 7))),
            )
        )
        return concat(
            (
                repeat(literal("-"), 0, 1),
                alt(
                    (
                        concat((self._integers(0, self._limit), fraction)),
                        concat((_digits(), fraction, exponent, large)),
                    )
                ),
            )
        )

    def one(self, value: Fraction, *, pointed: bool) -> Regex:
        """One number; `pointed`: as it was listed, with .0, or without."""
        tail = EMPTY
        if value.denominator == 1:
            tail = repeat(literal(".0"), 0, 1) if pointed else self._integer_tail()
            if not is_double(value):
                # Only what is written alike is rounded alike.
                tail = literal(".0") if pointed else EMPTY
        return concat((literal(plain(value)), tail))

    def multiples(self, numbers: Numbers, step: Fraction) -> Regex | None:
        """A few multiples, each by itself; None if they are many."""
        if numbers.low is not None and numbers.high is not None:
            first, last = math.ceil(numbers.low / step), math.floor(numbers.high / step)
            if last - first < _MOST_LISTED:
                values = (step * index for index in range(first, last + 1))
                return alt(self.one(value, pointed=numbers.pointed) for value in values if value in numbers)
        if numbers.off:
            raise UnenforceableError(
                "multiples of one number but not of another cannot be told", "multipleOf"
            )
        return None

    def spellings(self, value: Fraction) -> Regex:
        """Every plain spelling of one number, zeros at the end of a fraction included."""
        zeros = repeat(literal("0"), 0, None)
        text = plain(value)
        if "." in text:
            return concat((literal(text), zeros))
        minus = repeat(literal("-"), 0, 1) if value == 0 else EMPTY
        return concat((minus, literal(text), repeat(concat((literal(".0"), zeros)), 0, 1)))

    def read_as(self, value: Fraction) -> Regex:
        """Every plain numeral that is read as one number, and maybe others that are nearly as close."""
        return alt((self.spellings(value), rounded_to(value)))

    def between(self, numbers: Numbers) -> Regex:
        """Every number within the bounds of a set and of its wholeness."""
        negative = self._unsigned(
            numbers,
            low=None if numbers.high is None else -numbers.high,
            low_open=numbers.high_open,
            high=None if numbers.low is None else -numbers.low,
            high_open=numbers.low_open,
            zero=False,
        )
        positive = self._unsigned(
            numbers,
            low=numbers.low,
            low_open=numbers.low_open,
            high=numbers.high,
            high_open=numbers.high_open,
            zero=True,
        )
        return alt((positive, concat((literal("-"), negative))))

    def _unsigned(
        self,
        numbers: Numbers,
        *,
        low: Fraction | None,
        low_open: bool,
        high: Fraction | None,
        high_open: bool,
        zero: bool,
    ) -> Regex:
        """Numerals without sign of the values from `low` to `high`; 0 only if `zero`."""
        if high is not None and high < 0:
            return NOTHING
        if low is None or low < 0:
            low, low_open = Fraction(0), False
        if low == 0 and not zero:
            low_open = True
        limit = self._limit
        while low > limit:
            # The schema asks for more digits than are the most elsewhere.
            limit = 10 * limit + 9
        if high is None or high > limit:
            high, high_open = Fraction(limit + 1), True
        if low > high:
            return NOTHING
        if numbers.whole:
            first, last = Numbers(low, low_open, high, high_open).integers()
            whole = self._integers(first or 0, last or 0)
            return concat((whole, self._integer_tail()))
        text = self._decimals(low, low_open, high, high_open)
        if numbers.whole is False:
            text = intersect(
                (text, concat((self._integers(0, limit), self._fraction(self._above("", strict=True)))))
            )
        return text

    def _integer_tail(self) -> Regex:
        """What may follow the digits of an integer."""
        return repeat(literal(".0"), 0, 1) if self._options.decimal_integers else EMPTY

    def _decimals(self, low: Fraction, low_open: bool, high: Fraction, high_open: bool) -> Regex:
        first, after_first = _split(low)
        last, after_last = _split(high)
        above = self._from(after_first, strict=low_open)
        below = self._to(after_last, strict=high_open)
        if first == last:
            return concat((self._integers(first, first), intersect((above, below))))
        middle = concat((self._integers(first + 1, last - 1), repeat(self._any_fraction, 0, 1)))
        return alt(
            (
                concat((self._integers(first, first), above)),
                middle,
                concat((self._integers(last, last), below)),
            )
        )

    def _from(self, digits: str, *, strict: bool) -> Regex:
        """What may follow an integer part so that the fraction is at least (more than) 0.`digits`."""
        fraction = self._fraction(self._above(digits, strict=strict))
        return fraction if digits or strict else alt((EMPTY, fraction))

    def _to(self, digits: str, *, strict: bool) -> Regex:
        """What may follow an integer part so that the fraction is at most (less than) 0.`digits`."""
        fraction = self._fraction(self._below(digits, strict=strict))
        return fraction if strict and not digits else alt((EMPTY, fraction))

    def _fraction(self, digits: Regex) -> Regex:
        within = intersect((digits, repeat(_digits(), 1, self._options.fraction_digits)))
        return concat((literal("."), within))

    def _above(self, digits: str, *, strict: bool) -> Regex:
        """Digits after a point that are at least (more than) these."""
        rest = repeat(_digits(), 0, None)
        options = [
            concat((literal(digits[:i]), _digits(int(digit) + 1), rest))
            for i, digit in enumerate(digits)
            if digit != "9"
        ]
        more = concat((repeat(literal("0"), 0, None), _digits(1), rest)) if strict else rest
        return alt((*options, concat((literal(digits), more))))

    def _below(self, digits: str, *, strict: bool) -> Regex:
        """Digits after a point that are at most (less than) these, which do not end in 0."""
        rest = repeat(_digits(), 0, None)
        options = [
            concat((literal(digits[:i]), _digits(0, int(digit) - 1), rest))
            for i, digit in enumerate(digits)
            if digit != "0"
        ]
        shorter = [literal(digits[:i]) for i in range(1, len(digits))]
        equal = [] if strict else [concat((literal(digits), repeat(literal("0"), 0, None)))]
        return alt((*options, *shorter, *equal))

    def _integers(self, low: int, high: int) -> Regex:
        """The integers from `low` to `high`, without leading zeros."""
        options = []
        while low <= high:
            size = len(str(low))
            last = min(high, 10**size - 1)
            if low == 10 ** (size - 1) and last == 10**size - 1:
                # All integers of this and maybe of greater lengths.
                longest = len(str(high + 1)) - 1
                options.append(concat((_digits(1), repeat(_digits(), size - 1, longest - 1))))
                last = 10**longest - 1
            else:
                options.append(_same_length(str(low), str(last)))
            low = last + 1
        return alt(options)


def _same_length(low: str, high: str) -> Regex:
    """Digit strings of one length from `low` to `high`."""
    if not low:
        return EMPTY
    size = len(low) - 1
    if low[1:] == "0" * size and high[1:] == "9" * size:
        return concat((_digits(int(low[0]), int(high[0])), repeat(_digits(), size, size)))
    if low[0] == high[0]:
        return concat((literal(low[0]), _same_length(low[1:], high[1:])))
    first = concat((literal(low[0]), _same_length(low[1:], "9" * size)))
    last = concat((literal(high[0]), _same_length("0" * size, high[1:])))
    middle = range(int(low[0]) + 1, int(high[0]))
    between = [concat((_digits(middle[0], middle[-1]), repeat(_digits(), size, size)))] if middle else []
    return alt((first, *between, last))
