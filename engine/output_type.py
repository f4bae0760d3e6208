"""Output types as users of Outlines write them, as constraints."""

from __future__ import annotations

from typing import Any

from outlines.types.dsl import CFG, Choice, JsonSchema, Term, python_types_to_terms, to_regex

from grammars.spec import Constraint


def constraint_of(output_type: Any) -> Constraint:
    """The constraint of an output type.

    Args:
        output_type: a `Constraint`; `dict` for any JSON object; or what `outlines.types` takes: a Pydantic
            model, dataclass or TypedDict, `int` and the like, `Literal`, an Enum, `Regex`, `JsonSchema`,
            `CFG`, `Choice`, a term of its language.

    Raises:
        TypeError, ValueError, NotImplementedError: Outlines has no meaning for it.
    """
    if isinstance(output_type, Constraint):
        return output_type
    if output_type is dict:
        return Constraint(kind="json_object")
    term: Term = python_types_to_terms(output_type)
    match term:
        case JsonSchema():
            return Constraint.json_schema(term.schema)
        case CFG():
            return Constraint(kind="lark", spec=term.definition)
        case Choice() if all(isinstance(item, str) for item in term.items):
            return Constraint.choice(term.items)
        case _:
            return Constraint(kind="regex", spec=to_regex(term))
