"""From a constraint to the text of a grammar in llguidance's own format."""

from __future__ import annotations

import json
import math

import msgspec
from llguidance import LLMatcher
from llguidance.gbnf_to_lark import gbnf_to_lark

from grammars.base import GrammarError
from grammars.schema.build import build
from grammars.schema.emit import emit
from grammars.schema.sizes import settle
from grammars.spec import Constraint, check_limits


def lower(constraint: Constraint) -> str:
    """The grammar to compile.

    Raises:
        GrammarError: what of the constraint cannot be enforced, and where it stands.
    """
    check_limits(constraint)
    match constraint.kind:
        case "json_object":
            return _json('{"type":"object"}', constraint)
        case "json_schema":
            return _json(constraint.spec, constraint)
        case "regex":
            return str(LLMatcher.grammar_from_regex(constraint.spec))
        case "choice":
            options = msgspec.json.decode(constraint.spec, type=list[str])
            return str(LLMatcher.grammar_from_lark("start: " + " | ".join(json.dumps(x) for x in options)))
        case "lark":
            return str(LLMatcher.grammar_from_lark(constraint.spec))
        case "gbnf":
            return str(LLMatcher.grammar_from_lark(gbnf_to_lark(constraint.spec)))
        case _:
            raise GrammarError(f"{constraint.kind} is not supported")


def _json(schema: str, constraint: Constraint) -> str:
    root = build(schema, constraint.json)
    settle(root)
    if root.size == math.inf:
        raise GrammarError("no value satisfies the schema")
    return emit(root, constraint.json)
