"""`unevaluatedProperties` and `unevaluatedItems`: what no other keyword has looked at.

What was looked at depends on which subschemas of the same value hold. So the cases are told apart: each
is a choice of subschemas that hold and others that do not, and in each it is known what was looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain

from grammars.regular.ast import Regex
from grammars.schema import meaning as m
from grammars.schema.applicators import children, pruned
from grammars.schema.arrays import Arrays, Items
from grammars.schema.containers import child, items_of, properties_of
from grammars.schema.document import Draft, Schema
from grammars.schema.errors import UnenforceableError
from grammars.schema.evaluate import Evaluator, Handler
from grammars.schema.formula import TRUE, Formula, conj, disj, neg, of
from grammars.schema.meaning import Meaning
from grammars.schema.objects import Objects, Properties

MAX_CASES = 128


@dataclass(frozen=True, slots=True)
class _Seen:
    """What keywords looked at.

    Attributes:
        names, patterns: properties by name and by pattern.
        all_properties, all_items: everything of a kind.
        prefix: the first so many items.
        matched: items that satisfy one of these (`contains`).
    """

    names: tuple[str, ...] = ()
    patterns: tuple[Regex, ...] = ()
    all_properties: bool = False
    prefix: int = 0
    all_items: bool = False
    matched: tuple[Formula, ...] = ()

    def __or__(self, other: _Seen) -> _Seen:
        return _Seen(
            tuple(dict.fromkeys(self.names + other.names)),
            tuple(dict.fromkeys(self.patterns + other.patterns)),
            self.all_properties or other.all_properties,
            max(self.prefix, other.prefix),
            self.all_items or other.all_items,
            tuple(dict.fromkeys(self.matched + other.matched)),
        )


@dataclass(frozen=True, slots=True)
class _Case:
    """A choice of what holds, and what that looked at."""

    holds: Formula = TRUE
    seen: _Seen = _Seen()

    def __and__(self, other: _Case) -> _Case:
        return _Case(conj((self.holds, other.holds)), self.seen | other.seen)


def _unevaluated_properties(evaluator: Evaluator, schema: Schema) -> Meaning:
    others = child(evaluator, schema, "unevaluatedProperties")
    result = m.NOTHING
    for case in _cases(evaluator, schema, own=True):
        if case.seen.all_properties:
            rest = m.ANYTHING
        else:
            named = tuple((name, TRUE) for name in case.seen.names)
            said = Properties(named, tuple((regex, TRUE) for regex in case.seen.patterns), others)
            rest = replace(m.ANYTHING, objects=(Objects((said,)),))
        result |= pruned(evaluator, evaluator.meaning(case.holds) & rest)
    return result


def _unevaluated_items(evaluator: Evaluator, schema: Schema) -> Meaning:
    others = child(evaluator, schema, "unevaluatedItems")
    result = m.NOTHING
    for case in _cases(evaluator, schema, own=True):
        if case.seen.all_items:
            rest = m.ANYTHING
        else:
            items = Items((TRUE,) * case.seen.prefix, disj((*case.seen.matched, others)))
            rest = replace(m.ANYTHING, arrays=(Arrays((items,)),))
        result |= pruned(evaluator, evaluator.meaning(case.holds) & rest)
    return result


def _cases(evaluator: Evaluator, schema: Schema | bool, *, own: bool = False) -> list[_Case]:
    """The cases of a schema; `own`: it is the one whose unevaluated values are asked for."""
    if isinstance(schema, bool):
        return [_Case()]
    cases = [_Case(seen=_looked_at(evaluator, schema, own=own))]
    for factor in _factors(evaluator, schema):
        cases = [a & b for a in cases for b in factor]
        if len(cases) > MAX_CASES:
            raise UnenforceableError(
                f"more than {MAX_CASES} cases of what is evaluated", "unevaluatedProperties"
            )
    return cases


def _looked_at(evaluator: Evaluator, schema: Schema, *, own: bool) -> _Seen:
    """What the keywords of a schema itself look at."""
    value = schema.value
    if schema.resource.ref_stands_alone and "$ref" in value:
        return _Seen()
    properties = properties_of(evaluator, schema)
    items = items_of(evaluator, schema)
    matched: tuple[Formula, ...] = ()
    if "contains" in value and schema.resource.draft != Draft.DRAFT2019:
        matched = (child(evaluator, schema, "contains"),)
    tuple_form = isinstance(value.get("items"), list)
    return _Seen(
        tuple(name for name, _ in properties.named),
        tuple(regex for regex, _ in properties.patterns),
        properties.others is not None or (not own and "unevaluatedProperties" in value),
        len(items.prefix),
        ("additionalItems" if tuple_form else "items") in value or (not own and "unevaluatedItems" in value),
        matched,
    )


def _factors(evaluator: Evaluator, schema: Schema) -> Iterator[list[_Case]]:
    """For each keyword with subschemas of the same value, the cases it makes."""
    value = schema.value
    for keyword in ("$ref", "$dynamicRef", "$recursiveRef"):
        if keyword in value:
            yield _cases(evaluator, evaluator.document.resolve(schema, keyword))
    for index in range(len(value.get("allOf", ()))):
        yield _cases(evaluator, evaluator.document.subschema(schema, "allOf", index))
    for keyword in ("anyOf", "oneOf"):
        if keyword in value:
            yield list(_combinations(evaluator, schema, keyword))
    if "if" in value:
        yield list(_conditional(evaluator, schema))
    for keyword in ("dependentSchemas", "dependencies"):
        for name, dependent in value.get(keyword, {}).items():
            if not isinstance(dependent, list):
                yield list(_dependent(evaluator, schema, keyword, name))


def _combinations(evaluator: Evaluator, schema: Schema, keyword: str) -> Iterator[_Case]:
    """Every way in which at least one, or exactly one, branch holds."""
    formulas = children(evaluator, schema, keyword)
    branches = [
        [
            _Case(formula) & case
            for case in _cases(evaluator, evaluator.document.subschema(schema, keyword, i))
        ]
        for i, formula in enumerate(formulas)
    ]
    if all(case.seen == _Seen() for case in chain.from_iterable(branches)):
        yield _Case()
        return
    ways: Iterable[_Case] = [_Case()]
    for formula, branch in zip(formulas, branches, strict=True):
        ways = [way & case for way in ways for case in (*branch, _Case(neg(formula)))]
        if len(ways) > MAX_CASES:
            raise UnenforceableError(f"more than {MAX_CASES} cases of what is evaluated", keyword)
    # That at least (exactly) one holds is what the keyword itself says.
    yield from ways


def _conditional(evaluator: Evaluator, schema: Schema) -> Iterator[_Case]:
    condition = child(evaluator, schema, "if")
    for case in _cases(evaluator, evaluator.document.subschema(schema, "if")):
        for then in _branch(evaluator, schema, "then"):
            yield _Case(condition) & case & then
    for otherwise in _branch(evaluator, schema, "else"):
        yield _Case(neg(condition)) & otherwise


def _branch(evaluator: Evaluator, schema: Schema, keyword: str) -> list[_Case]:
    if keyword not in schema.value:
        return [_Case()]
    return _cases(evaluator, evaluator.document.subschema(schema, keyword))


def _dependent(evaluator: Evaluator, schema: Schema, keyword: str, name: str) -> Iterator[_Case]:
    present = of(evaluator.document.derived({"type": "object", "required": [name]}, schema))
    for case in _cases(evaluator, evaluator.document.subschema(schema, keyword, name)):
        yield _Case(present) & case
    yield _Case(neg(present))


HANDLERS: dict[str, Handler] = {
    "unevaluatedProperties": _unevaluated_properties,
    "unevaluatedItems": _unevaluated_items,
}
