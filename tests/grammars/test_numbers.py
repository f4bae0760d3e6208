"""Sets of numbers and their spellings, against exact fractions."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grammars.base import GrammarError
from grammars.llg import LlgGrammar
from grammars.lower import lower
from grammars.regular.derivative import matches
from grammars.regular.questions import shortest
from grammars.schema.number_text import number_text, plain
from grammars.schema.numbers import Numbers
from grammars.schema.reader import identity
from grammars.schema.shapes import Multiples
from grammars.schema.steps_left import complete_multiple, is_multiple
from grammars.spec import Constraint, JsonOptions
from grammars.vocab import Vocabulary
from tests.grammars.driver import reads

OPTIONS = JsonOptions(integer_digits=4, fraction_digits=4)


def _decimals() -> st.SearchStrategy[Fraction]:
    return st.builds(lambda n, k: Fraction(n, 10**k), st.integers(-400, 400), st.integers(0, 3))


def _sets() -> st.SearchStrategy[Numbers]:
    return st.builds(
        Numbers,
        low=st.none() | _decimals(),
        low_open=st.booleans(),
        high=st.none() | _decimals(),
        high_open=st.booleans(),
        whole=st.sampled_from([None, True, False]),
        without=st.frozensets(_decimals(), max_size=2),
        off=st.frozensets(
            st.sampled_from([Fraction(2), Fraction(3), Fraction(1, 2), Fraction(15)]), max_size=1
        ),
    )


@settings(max_examples=200, deadline=None)
@given(numbers=_sets(), data=st.data())
def test_exactly_the_numbers_of_a_set_are_spelled(numbers: Numbers, data: st.DataObject) -> None:
    near = [value for value in (numbers.low, numbers.high, *numbers.without) if value is not None]
    offset = st.sampled_from([Fraction(0), Fraction(1), Fraction(-1), Fraction(1, 100), Fraction(-1, 1000)])
    values = _decimals() if not near else st.builds(lambda a, b: a + b, st.sampled_from(near), offset)
    value = data.draw(values)
    text = plain(value) + data.draw(st.sampled_from(["", "0" if "." in plain(value) else ".0"]))
    if numbers == Numbers():
        return
    language = number_text(numbers, OPTIONS)
    assert language is not None
    listed = numbers.low is not None and numbers.low == numbers.high
    spelled_otherwise = text != plain(value) and (listed or numbers.whole is True)
    assert matches(language, text) == (value in numbers and not spelled_otherwise)
    for malformed in ("", "-", "1.", ".5", "01", "-01", "+1", "1e2"):
        assert not matches(language, malformed)


@settings(max_examples=200, deadline=None)
@given(left=_sets(), right=_sets(), value=_decimals())
def test_sets_meet_and_have_complements(left: Numbers, right: Numbers, value: Fraction) -> None:
    both = left.meet(right)
    assert (both is not None and value in both) == (value in left and value in right)
    assert any(value in part for part in left.outside()) != (value in left)


@pytest.mark.parametrize(
    "step", ["5", "2", "4", "0.01", "0.5", "2.5", "25", "0.125", "20", "0.3", "1.5", "0.75", "7.5"]
)
@settings(max_examples=40, deadline=None)
@given(count=st.integers(-60, 200), noise=st.sampled_from(["0", "0", "1", "0.5", "0.003"]))
def test_multiples_by_their_last_digits(step: str, count: int, noise: str) -> None:
    numbers = Numbers(step=Fraction(step))
    language = number_text(numbers, OPTIONS)
    assert language is not None
    value = Fraction(step) * count + Fraction(noise)
    assert matches(language, plain(value)) == (value in numbers)
    assert not matches(language, plain(value) + ".")


@settings(max_examples=200, deadline=None)
@given(step=st.sampled_from(["7", "3", "12", "99"]), prefix=st.from_regex(r"\A-?[1-9]?[0-9]\Z"))
def test_a_number_can_be_completed_to_a_multiple(step: str, prefix: str) -> None:
    multiples = Multiples(Numbers(step=Fraction(step)), Fraction(step), "0")
    if prefix.lstrip("-").startswith("0") and len(prefix) > 1:
        return
    ending = complete_multiple(multiples, prefix)
    assert ending is not None
    assert is_multiple(multiples, prefix + ending)
    assert isinstance(json.loads(prefix + ending), int)


@pytest.mark.parametrize(
    "schema",
    [
        {"multipleOf": 0.7},
        {"multipleOf": 1.1, "minimum": 0},
        {"multipleOf": 7, "minimum": 2**63},
        {"type": "integer", "multipleOf": 7, "not": {"multipleOf": 2}},
    ],
)
def test_multiples_that_cannot_be_told_are_refused(schema: dict[str, float]) -> None:
    with pytest.raises(GrammarError, match=r"can be told|do not tell|cannot be told") as refusal:
        lower(Constraint.json_schema({"type": "number", **schema}))
    assert (refusal.value.keyword, refusal.value.pointer) == ("multipleOf", "/multipleOf")


@pytest.mark.parametrize(
    ("begun", "step"),
    [*((begun, 0.3) for begun in ("-0.", "63.", "9.9", "6.0", "-", "")), ("-", 7), ("-", 12), ("-2", 7)],
)
def test_a_multiple_ends_whole_within_its_budget(begun: str, step: float, vocabulary: Vocabulary) -> None:
    grammar = LlgGrammar(vocabulary, lower(Constraint.json_schema({"type": "number", "multipleOf": step})))
    matcher = grammar.matcher()
    for char in begun:
        assert matcher.accept(vocabulary.token_bytes.index(char.encode()))
    close = matcher.shortest_close()
    assert close is not None
    assert [token for token in close if not matcher.accept(token)] == []
    assert matcher.is_complete
    text = begun + b"".join(vocabulary.token_bytes[token] for token in close).decode()
    assert (Fraction(text) / Fraction(str(step))).denominator == 1


def test_digits_are_bounded_and_no_number_overflows() -> None:
    language = number_text(Numbers(), JsonOptions())
    assert language is not None
    assert matches(language, "-1.5e307")
    for text in ("1" * 21, "1e308", "0." + "1" * 21):
        assert not matches(language, text)
    assert shortest(language) == "0"


@pytest.mark.parametrize("whole", [True, None])
def test_bounds_with_more_digits_than_numbers_elsewhere_are_exact(whole: bool | None) -> None:
    least = 10**30
    large = number_text(Numbers(low=Fraction(least), whole=whole), JsonOptions())
    small = number_text(Numbers(high=Fraction(-least), high_open=True, whole=whole), JsonOptions())
    assert large is not None
    assert small is not None
    assert matches(large, str(least))
    assert matches(large, str(9 * least))
    assert not matches(large, str(least - 1))
    assert not matches(large, str(10 * least))
    next_double = Fraction(repr(math.nextafter(-least, -math.inf)))
    assert matches(small, str(int(next_double)))
    assert matches(small, str(-2 * least))
    # Which is read as the bound.
    assert not matches(small, str(-least - 1))
    assert not matches(small, str(-least))


@pytest.mark.parametrize("listed", [{"enum": [5.0]}, {"minimum": 5, "maximum": 5}])
def test_what_has_a_point_is_no_integer_in_draft_4(listed: dict[str, object], vocabulary: Vocabulary) -> None:
    options = JsonOptions(decimal_integers=True)
    for draft, pointed in (("draft-04", False), ("draft-06", True)):
        schema = {"$schema": f"http://json-schema.org/{draft}/schema#", "type": "integer", **listed}
        grammar = LlgGrammar(vocabulary, lower(Constraint.json_schema(schema, options)))
        assert reads(grammar, vocabulary, "5")
        assert reads(grammar, vocabulary, "5.0") == pointed


_NEAR = [
    "0.99999999999999999999", "1.00000000000000000001", "0.1", "0.10000000000000000001",
    "5.00000000000000001", "99.99999999999999999", "100.00000000000000000001", "999999999999999.99999",
    "75838352286791405924.9", "9007199254740993.5", "12345678901234.5000000001", "0.3",
    "0.30000000000000004", "4.9999999999999999", "7", "0.00000000000000000001", "1000000000000000.5",
    "1152921504606846976.5", "2.5", "99.9", "18014398509481985",
]  # fmt: skip


@pytest.mark.parametrize("bound", ["1", "0.1", "100", "1000000000000000", "5", "0", "1152921504606846976"])
def test_numbers_are_told_apart_as_doubles(bound: str) -> None:
    """A reader has no more digits; what is told of one number must not be lost by rounding."""
    value = Fraction(bound)
    sets = [
        Numbers(low=value, low_open=True),
        Numbers(high=value, high_open=True),
        Numbers(low=-value, low_open=True, high=value, high_open=True),
        Numbers(whole=False),
        Numbers(low=Fraction(-(10**19)), without=frozenset({value})),
        Numbers(low=Fraction(-(10**19)), without=frozenset({-value, Fraction(1)})),
    ]
    for numbers in sets:
        language = number_text(numbers, JsonOptions())
        assert language is not None
        for text in (sign + text for text in (*_NEAR, bound) for sign in ("", "-")):
            read = json.loads(text)
            right = Fraction(read) in replace(numbers, **_as_read(numbers))
            if matches(language, text):
                assert right, (numbers, text)
            elif Fraction(text) in numbers and len(text.strip("-0.")) <= 15:
                # Of few digits, all are written.
                assert not right, (numbers, text)
    assert identity("0.1") == identity("0.100000000000000000001") != identity("0.10000000000000002")
    assert identity("5") == identity("5.0") == identity("0.5e1") != identity("5.000000000000001")


def _as_read(numbers: Numbers) -> dict[str, Any]:
    """The numbers in a set's description as a reader takes them."""
    bounds = {"low": numbers.low, "high": numbers.high}
    read: dict[str, Any] = {key: None if at is None else Fraction(float(at)) for key, at in bounds.items()}
    return {**read, "without": frozenset(Fraction(float(value)) for value in numbers.without)}


def test_few_multiples_are_listed_one_by_one(vocabulary: Vocabulary) -> None:
    schema = {"type": "number", "multipleOf": 0.7, "minimum": -1, "exclusiveMaximum": 2.1}
    grammar = LlgGrammar(vocabulary, lower(Constraint.json_schema(schema)))
    taken = [
        text for text in ("-1.4", "-0.7", "0", "0.7", "1.4", "1.5", "2.1") if reads(grammar, vocabulary, text)
    ]
    assert taken == ["-0.7", "0", "0.7", "1.4"]


@pytest.mark.parametrize("begun", ["", "[", "[-", "[0,", "[0,7,1", "[14,7,-", "[-7,-1"])
def test_distinct_multiples_end_whole(begun: str, vocabulary: Vocabulary) -> None:
    schema = {
        "type": "array",
        "items": {"type": "integer", "multipleOf": 7},
        "uniqueItems": True,
        "minItems": 3,
    }
    grammar = LlgGrammar(vocabulary, lower(Constraint.json_schema(schema)))
    matcher = grammar.matcher()
    for char in begun:
        assert matcher.accept(vocabulary.token_bytes.index(char.encode()))
    close = matcher.shortest_close()
    assert close is not None
    value = json.loads(begun + b"".join(vocabulary.token_bytes[token] for token in close).decode())
    assert len(set(value)) == len(value) == 3
    assert all(item % 7 == 0 for item in value)
