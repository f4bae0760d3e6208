"""Keywords about values without parts: types, constants, numbers, strings."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

from grammars.regular.ast import length
from grammars.regular.patterns import full_language, search_language
from grammars.schema import meaning as m
from grammars.schema.arrays import Arrays, Items
from grammars.schema.document import Draft, PointedInt, Schema
from grammars.schema.doubles import rounded_bounds
from grammars.schema.errors import UnenforceableError
from grammars.schema.evaluate import Evaluator, Handler
from grammars.schema.formats import format_language
from grammars.schema.formula import FALSE, of
from grammars.schema.keywords import counts, is_number
from grammars.schema.meaning import Meaning
from grammars.schema.numbers import Numbers
from grammars.schema.objects import Objects, Properties
from grammars.schema.strings import Strings

_TYPES = {
    "null": Meaning(null=True),
    "boolean": Meaning(booleans=frozenset((False, True))),
    "integer": Meaning(numbers=(Numbers(whole=True),)),
    "number": Meaning(numbers=(Numbers(),)),
    "string": Meaning(strings=Strings()),
    "array": Meaning(arrays=(Arrays(),)),
    "object": Meaning(objects=(Objects(),)),
}


def _type(evaluator: Evaluator, schema: Schema) -> Meaning:
    names = schema.value["type"]
    result = m.NOTHING
    for name in [names] if isinstance(names, str) else names:
        result |= _TYPES[name]
    if evaluator.options.nullable and schema.value.get("nullable") is True:
        result |= _TYPES["null"]
    return result


def _const(evaluator: Evaluator, schema: Schema) -> Meaning:
    return _one_of([schema.value["const"]], evaluator, schema)


def _enum(evaluator: Evaluator, schema: Schema) -> Meaning:
    return _one_of(schema.value["enum"], evaluator, schema)


def _one_of(values: list[Any], evaluator: Evaluator, schema: Schema) -> Meaning:
    """Exactly these values; arrays and objects part by part."""
    # In draft 4 what has a point is no integer; without one it equals what is listed all the same.
    points = schema.resource.draft != Draft.DRAFT4
    numbers = (
        (Fraction(value), points and isinstance(value, PointedInt)) for value in values if is_number(value)
    )
    return Meaning(
        null=any(value is None for value in values),
        booleans=frozenset(value for value in values if isinstance(value, bool)),
        numbers=tuple(dict.fromkeys(Numbers(low=n, high=n, pointed=pointed) for n, pointed in numbers)),
        strings=Strings(tuple(dict.fromkeys(value for value in values if isinstance(value, str)))),
        arrays=tuple(_array(value, evaluator, schema) for value in values if isinstance(value, list)),
        objects=tuple(_object(value, evaluator, schema) for value in values if isinstance(value, dict)),
    )


def _array(values: list[Any], evaluator: Evaluator, schema: Schema) -> Arrays:
    items = tuple(of(evaluator.document.derived({"const": value}, schema)) for value in values)
    return Arrays((Items(items),), low=len(items), high=len(items))


def _object(values: dict[str, Any], evaluator: Evaluator, schema: Schema) -> Objects:
    named = tuple(
        (name, of(evaluator.document.derived({"const": value}, schema))) for name, value in values.items()
    )
    return Objects((Properties(named, others=FALSE),), required=tuple(values))


def _number(evaluator: Evaluator, schema: Schema) -> Meaning:
    """Bounds, and the step between multiples. Before draft 6 a bound is made exclusive by a flag."""
    value = schema.value
    low_flag, high_flag = value.get("exclusiveMinimum", False), value.get("exclusiveMaximum", False)
    sets = []
    if "minimum" in value:
        sets.append(Numbers(low=_bounds(value["minimum"])[1], low_open=low_flag is True))
    if "maximum" in value:
        sets.append(Numbers(high=_bounds(value["maximum"])[0], high_open=high_flag is True))
    if is_number(low_flag):
        sets.append(Numbers(low=_bounds(low_flag)[1], low_open=True))
    if is_number(high_flag):
        sets.append(Numbers(high=_bounds(high_flag)[0], high_open=True))
    if "multipleOf" in value:
        sets.append(Numbers(step=Fraction(value["multipleOf"])))
    result = m.ANYTHING
    for numbers in sets:
        result &= replace(m.ANYTHING, numbers=(numbers,))
    return result


def _bounds(value: int | Fraction) -> tuple[Fraction, Fraction]:
    """The least and the largest number that a number of a schema is read as."""
    exact = isinstance(value, int) and not isinstance(value, PointedInt)
    return (Fraction(value), Fraction(value)) if exact else rounded_bounds(Fraction(value))


def _length(evaluator: Evaluator, schema: Schema) -> Meaning:
    low, high = counts(schema.value, "minLength", "maxLength")
    if high is not None and low > high:
        return replace(m.ANYTHING, strings=Strings(()))
    return replace(m.ANYTHING, strings=Strings(regex=length(low, high)))


def _pattern(evaluator: Evaluator, schema: Schema) -> Meaning:
    return replace(m.ANYTHING, strings=Strings(regex=search_language(schema.value["pattern"])))


def _format(evaluator: Evaluator, schema: Schema) -> Meaning:
    known = format_language(schema.value["format"])
    if known is None:
        return m.ANYTHING
    exact, wider = known
    return replace(m.ANYTHING, strings=Strings(None, exact, None if wider is exact else wider))


def _content(evaluator: Evaluator, schema: Schema) -> Meaning:
    """Encodings are enforced; that the text holds JSON cannot be, and is asked for in draft 7 only."""
    value = schema.value
    if schema.resource.draft == Draft.DRAFT7 and "json" in str(value.get("contentMediaType", "")).lower():
        raise UnenforceableError("that a string holds JSON cannot be enforced", "contentMediaType")
    pattern = _ENCODINGS.get(str(value.get("contentEncoding", "")).lower())
    return (
        m.ANYTHING if pattern is None else replace(m.ANYTHING, strings=Strings(regex=full_language(pattern)))
    )


_BASE64, _BASE32, _BASE16 = "[A-Za-z0-9+/]", "[A-Z2-7]", "[0-9A-F]"
_ENCODINGS = {
    "base64": f"(?:{_BASE64}{{4}})*(?:{_BASE64}[AQgw]==|{_BASE64}{{2}}[AEIMQUYcgkosw048]=)?",
    "base32": f"(?:{_BASE32}{{8}})*",
    "base16": f"(?:{_BASE16}{{2}})*",
}


HANDLERS: dict[str, Handler] = {
    "contentEncoding": _content,
    "contentMediaType": _content,
    "type": _type,
    "const": _const,
    "enum": _enum,
    "minimum": _number,
    "maximum": _number,
    "exclusiveMinimum": _number,
    "exclusiveMaximum": _number,
    "multipleOf": _number,
    "minLength": _length,
    "maxLength": _length,
    "pattern": _pattern,
    "format": _format,
}
