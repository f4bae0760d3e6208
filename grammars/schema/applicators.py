"""Keywords that apply schemas to the same value: references and logic."""

from __future__ import annotations

from dataclasses import replace

from grammars.schema import meaning as m
from grammars.schema.containers import child
from grammars.schema.document import Schema
from grammars.schema.emptiness import is_empty, no_arrays, no_objects
from grammars.schema.errors import UnenforceableError
from grammars.schema.evaluate import Evaluator, Handler
from grammars.schema.formula import Formula, conj, neg
from grammars.schema.meaning import Meaning
from grammars.schema.widened import widened


def _ref(evaluator: Evaluator, schema: Schema) -> Meaning:
    return evaluator.of(evaluator.document.resolve(schema, "$ref"))


def _dynamic_ref(evaluator: Evaluator, schema: Schema) -> Meaning:
    return evaluator.of(evaluator.document.resolve(schema, "$dynamicRef"))


def _recursive_ref(evaluator: Evaluator, schema: Schema) -> Meaning:
    return evaluator.of(evaluator.document.resolve(schema, "$recursiveRef"))


def children(evaluator: Evaluator, schema: Schema, keyword: str) -> list[Formula]:
    """The formulas of a keyword's list of subschemas."""
    return [child(evaluator, schema, keyword, index) for index in range(len(schema.value[keyword]))]


def _all_of(evaluator: Evaluator, schema: Schema) -> Meaning:
    result = m.ANYTHING
    for formula in children(evaluator, schema, "allOf"):
        met = evaluator.within(formula, lambda so_far=result: so_far & evaluator.beside(schema, "allOf"))  # type: ignore[misc]
        result = pruned(evaluator, result & met)
    return result


def _any_of(evaluator: Evaluator, schema: Schema) -> Meaning:
    result = m.NOTHING
    for formula in children(evaluator, schema, "anyOf"):
        result |= evaluator.meaning(formula)
    return result


def _one_of(evaluator: Evaluator, schema: Schema) -> Meaning:
    """Each branch without what it shares with others; mostly that is nothing, and need not be worked out.

    What the keywords beside it rule out may be shared; what only some readers take for another branch, not.
    Of a branch of distinct items, arrays that belong to another branch only because they repeat one are left
    out.
    """
    formulas = children(evaluator, schema, "oneOf")
    meanings = [evaluator.meaning(formula) for formula in formulas]
    if not evaluator.options.exclusive_one_of:
        formulas = []
    outer = [widened(meaning) for meaning in meanings]
    result = m.NOTHING
    beside: Meaning | None = None
    for i, meaning in enumerate(meanings):
        alone = meaning
        for j, other in enumerate(formulas):
            if i == j or is_empty(alone & outer[j], evaluator.meaning):
                continue
            if beside is None:
                beside = evaluator.beside(schema, "oneOf")
            if not is_empty(alone & outer[j] & beside, evaluator.meaning):
                try:
                    alone = pruned(evaluator, alone & _outside(evaluator, other))
                except UnenforceableError as error:
                    raise UnenforceableError(f"branches {i} and {j} overlap, and {error}", "oneOf") from error
        result |= alone
    return result


def _outside(evaluator: Evaluator, branch: Formula) -> Meaning:
    """What is outside of a branch; see `_one_of`."""
    try:
        return evaluator.meaning(neg(branch))
    except UnenforceableError as error:
        if error.keyword != "uniqueItems":
            raise
    return evaluator.meaning(branch).outside_without_repeats()


def _not(evaluator: Evaluator, schema: Schema) -> Meaning:
    return evaluator.meaning(neg(child(evaluator, schema, "not")))


def _if(evaluator: Evaluator, schema: Schema) -> Meaning:
    if "if" not in schema.value or not ("then" in schema.value or "else" in schema.value):
        return m.ANYTHING
    condition = child(evaluator, schema, "if")
    branches = []
    for formula, keyword in ((condition, "then"), (neg(condition), "else")):
        parts = [formula, child(evaluator, schema, keyword)] if keyword in schema.value else [formula]
        branches.append(pruned(evaluator, evaluator.meaning(conj(parts))))
    return branches[0] | branches[1]


def pruned(evaluator: Evaluator, meaning: Meaning) -> Meaning:
    """The same without alternatives that are certainly empty."""
    return replace(
        meaning,
        arrays=tuple(a for a in meaning.arrays if not no_arrays(a, evaluator.meaning)),
        objects=tuple(o for o in meaning.objects if not no_objects(o, evaluator.meaning)),
    )


HANDLERS: dict[str, Handler] = {
    "$ref": _ref,
    "$dynamicRef": _dynamic_ref,
    "$recursiveRef": _recursive_ref,
    "allOf": _all_of,
    "anyOf": _any_of,
    "oneOf": _one_of,
    "not": _not,
    "if": _if,
    "then": _if,
    "else": _if,
}
