"""Output types as users of Outlines write them, as constraints.

Outlines reads Python types (pydantic models, dataclasses, `Literal`, enums, unions, …) and its own terms
(`Regex`, `CFG`, `JsonSchema`, quantifiers) into terms; what stands behind a term is enforced here.
"""

from __future__ import annotations

from typing import Any

from outlines.types import CFG, JsonSchema
from outlines.types.dsl import python_types_to_terms, to_regex

from grammars.base import GrammarError
from grammars.spec import Constraint, JsonOptions


def constraint_of(output_type: Any, json: JsonOptions | None = None) -> Constraint:
    """The constraint that an output type of Outlines means.

    Raises:
        GrammarError: Outlines does not know the type.
    """
    try:
        term = python_types_to_terms(output_type)
        if isinstance(term, JsonSchema):
            return Constraint.json_schema(term.schema, json)
        if isinstance(term, CFG):
            return Constraint(kind="lark", spec=term.definition)
        return Constraint(kind="regex", spec=to_regex(term))
    except (TypeError, NotImplementedError, RecursionError) as error:
        raise GrammarError(f"not an output type: {error}") from error
