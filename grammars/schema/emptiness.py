"""Whether a meaning allows nothing, as far as a short look can prove it."""

from __future__ import annotations

from collections.abc import Callable

from grammars.base import GrammarError
from grammars.regular.questions import TooManyStatesError
from grammars.schema.arrays import Arrays
from grammars.schema.errors import UnenforceableError
from grammars.schema.formula import FALSE, Formula
from grammars.schema.meaning import Meaning
from grammars.schema.objects import Objects
from grammars.schema.strings import Strings

_DEPTH = 4

Evaluate = Callable[[Formula], Meaning]


def is_empty(meaning: Meaning, evaluate: Evaluate, depth: int = _DEPTH) -> bool:
    """True only if no value is allowed; False also when that is not certain."""
    return not (
        meaning.more_arrays
        or meaning.null
        or meaning.booleans
        or meaning.numbers
        or not no_strings(meaning.strings)
        or not all(no_arrays(arrays, evaluate, depth) for arrays in meaning.arrays)
        or not all(no_objects(objects, evaluate, depth) for objects in meaning.objects)
    )


def no_strings(strings: Strings) -> bool:
    """Whether there is certainly no string."""
    try:
        return strings.is_empty()
    except TooManyStatesError:
        return False


def no_arrays(arrays: Arrays, evaluate: Evaluate, depth: int = _DEPTH) -> bool:
    """Whether there is certainly no array: an item that must be there cannot be."""
    return any(_impossible(arrays.item(index), evaluate, depth) for index in range(min(arrays.low, 8)))


def no_objects(objects: Objects, evaluate: Evaluate, depth: int = _DEPTH) -> bool:
    """Whether there is certainly no object: a property that must be there cannot be."""
    return any(_impossible(objects.value(name), evaluate, depth) for name in objects.required)


def _impossible(formula: Formula, evaluate: Evaluate, depth: int) -> bool:
    if formula == FALSE or depth == 0:
        return formula == FALSE
    try:
        return is_empty(evaluate(formula), evaluate, depth - 1)
    except (GrammarError, UnenforceableError):
        # Asked too early, of a schema that is being worked out; or one that will be refused later.
        return False
