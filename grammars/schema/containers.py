"""Keywords about arrays and objects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from grammars.regular.patterns import search_language
from grammars.schema import meaning as m
from grammars.schema.arrays import Arrays, Contains, Items
from grammars.schema.document import Schema
from grammars.schema.evaluate import Evaluator, Handler
from grammars.schema.formula import TRUE, Formula, conj, of
from grammars.schema.keywords import counts
from grammars.schema.meaning import Meaning
from grammars.schema.objects import Objects, Properties
from grammars.schema.versions import may_be_passed_over

_MAX_HOPS = 16


def _arrays(arrays: Arrays) -> Meaning:
    return replace(m.ANYTHING, arrays=(arrays,))


def _objects(*objects: Objects) -> Meaning:
    return replace(m.ANYTHING, objects=objects)


def child(evaluator: Evaluator, schema: Schema, *path: str | int) -> Formula:
    """The formula of a subschema; of one that only refers to another, of that."""
    found = evaluator.document.subschema(schema, *path)
    for _ in range(_MAX_HOPS):
        if not isinstance(found, Schema) or list(found.value) != ["$ref"]:
            break
        found = evaluator.document.resolve(found, "$ref")
    return of(found)


def items_of(evaluator: Evaluator, schema: Schema) -> Items:
    """What `prefixItems`, `items` and `additionalItems` say, in the old forms and the new."""
    value = schema.value
    keyword = "items" if isinstance(value.get("items"), list) else "prefixItems"
    prefix = [child(evaluator, schema, keyword, i) for i in range(len(value.get(keyword, ())))]
    rest_keyword = "additionalItems" if keyword == "items" else "items"
    rest = child(evaluator, schema, rest_keyword) if rest_keyword in value else TRUE
    if keyword == "prefixItems" and may_be_passed_over(schema, keyword):
        # Then `items` is about all of them.
        prefix = [conj((item, rest)) for item in prefix]
    return Items(tuple(prefix), rest)


def _items(evaluator: Evaluator, schema: Schema) -> Meaning:
    return _arrays(Arrays((items_of(evaluator, schema),)))


def _item_count(evaluator: Evaluator, schema: Schema) -> Meaning:
    low, high = counts(schema.value, "minItems", "maxItems")
    if high is not None and low > high:
        return replace(m.ANYTHING, arrays=())
    return _arrays(Arrays(low=low, high=high))


def _contains(evaluator: Evaluator, schema: Schema) -> Meaning:
    if "contains" not in schema.value:
        return m.ANYTHING
    low, high = counts(schema.value, "minContains", "maxContains", default=1)
    if may_be_passed_over(schema, "minContains"):
        low = max(1, low)
    if high is not None and low > high:
        return replace(m.ANYTHING, arrays=())
    return _arrays(Arrays(contains=(Contains(child(evaluator, schema, "contains"), low, high),)))


def _unique_items(evaluator: Evaluator, schema: Schema) -> Meaning:
    return _arrays(Arrays(unique=schema.value["uniqueItems"]))


def properties_of(evaluator: Evaluator, schema: Schema) -> Properties:
    """What `properties`, `patternProperties` and `additionalProperties` say."""
    value = schema.value
    named = [(name, child(evaluator, schema, "properties", name)) for name in value.get("properties", {})]
    patterns = [
        (search_language(pattern), child(evaluator, schema, "patternProperties", pattern))
        for pattern in value.get("patternProperties", {})
    ]
    others = child(evaluator, schema, "additionalProperties") if "additionalProperties" in value else None
    return Properties(tuple(named), tuple(patterns), others)


def _properties(evaluator: Evaluator, schema: Schema) -> Meaning:
    return _objects(Objects((properties_of(evaluator, schema),)))


def _required(evaluator: Evaluator, schema: Schema) -> Meaning:
    return _objects(Objects(required=tuple(dict.fromkeys(schema.value["required"]))))


def _property_count(evaluator: Evaluator, schema: Schema) -> Meaning:
    low, high = counts(schema.value, "minProperties", "maxProperties")
    if high is not None and low > high:
        return _objects()
    return _objects(Objects(low=low, high=high))


def _property_names(evaluator: Evaluator, schema: Schema) -> Meaning:
    names = evaluator.meaning(child(evaluator, schema, "propertyNames"))
    return _readings(names, lambda meant: _objects(Objects(names=(meant.strings,))))


def _dependent_required(evaluator: Evaluator, schema: Schema) -> Meaning:
    result = m.ANYTHING
    for name, needed in schema.value["dependentRequired"].items():
        result &= _if_present(name, _objects(Objects(required=tuple(dict.fromkeys(needed)))))
    return result


def _dependent_schemas(evaluator: Evaluator, schema: Schema) -> Meaning:
    result = m.ANYTHING
    for name in schema.value["dependentSchemas"]:
        result &= _if_present(name, evaluator.meaning(child(evaluator, schema, "dependentSchemas", name)))
    return result


def _dependencies(evaluator: Evaluator, schema: Schema) -> Meaning:
    result = m.ANYTHING
    for name, needed in schema.value["dependencies"].items():
        if isinstance(needed, list):
            then = _objects(Objects(required=tuple(dict.fromkeys(needed))))
        else:
            then = evaluator.meaning(child(evaluator, schema, "dependencies", name))
        result &= _if_present(name, then)
    return result


def _if_present(name: str, then: Meaning) -> Meaning:
    """An object without the property, or one that satisfies `then`; other values are free."""
    present = Objects(required=(name,))

    def either(meant: Meaning) -> Meaning:
        met = [both for objects in meant.objects if (both := present.meet(objects)) is not None]
        return _objects(Objects(banned=(name,)), *met)

    return _readings(then, either)


def _readings(meaning: Meaning, made_of: Callable[[Meaning], Meaning]) -> Meaning:
    """What is made of a meaning, and of what other readers take it for."""
    made = made_of(meaning.inner)
    return made if meaning.wider is None else replace(made, wider=made_of(meaning.wider))


HANDLERS: dict[str, Handler] = {
    "items": _items,
    "prefixItems": _items,
    "additionalItems": _items,
    "minItems": _item_count,
    "maxItems": _item_count,
    "contains": _contains,
    "minContains": _contains,
    "maxContains": _contains,
    "uniqueItems": _unique_items,
    "properties": _properties,
    "patternProperties": _properties,
    "additionalProperties": _properties,
    "required": _required,
    "minProperties": _property_count,
    "maxProperties": _property_count,
    "propertyNames": _property_names,
    "dependentRequired": _dependent_required,
    "dependentSchemas": _dependent_schemas,
    "dependencies": _dependencies,
}
