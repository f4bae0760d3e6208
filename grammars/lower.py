"""From a constraint to a grammar in llguidance's own format, and what else is known of its sentences."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

import msgspec
from llguidance import LLMatcher
from llguidance.gbnf_to_lark import gbnf_to_lark

from grammars.base import GrammarError
from grammars.regular.ast import Regex, alt, literal
from grammars.schema.build import build
from grammars.schema.emit import emit
from grammars.schema.sizes import settle
from grammars.schema.tables import Tables, freeze
from grammars.spec import Constraint, check_limits


@dataclass(frozen=True)
class Lowered:
    """A grammar to compile.

    Attributes:
        source: in llguidance's format.
        sentences: what its sentences are, if that is known: JSON of a schema, or a regular language.
    """

    source: str
    sentences: Tables | Regex | None = None


def lower(constraint: Constraint) -> Lowered:
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
            return Lowered(LLMatcher.grammar_from_regex(constraint.spec))
        case "choice":
            return _choice(constraint.spec)
        case "lark":
            return Lowered(LLMatcher.grammar_from_lark(constraint.spec))
        case "gbnf":
            return Lowered(LLMatcher.grammar_from_lark(gbnf_to_lark(constraint.spec)))
        case _:
            raise GrammarError(f"{constraint.kind} is not supported")


def _json(schema: str, constraint: Constraint) -> Lowered:
    root = build(schema, constraint.json)
    settle(root)
    if root.size == math.inf:
        raise GrammarError("no value satisfies the schema")
    return Lowered(emit(root, constraint.json), freeze(root))


def _choice(text: str) -> Lowered:
    try:
        options = msgspec.json.decode(text, type=list[str])
    except msgspec.MsgspecError as error:
        raise GrammarError(f"a choice is a list of texts: {error}") from error
    if not options:
        raise GrammarError("there is nothing to choose from")
    source = LLMatcher.grammar_from_lark("start: " + " | ".join(map(json.dumps, options)))
    return Lowered(source, alt(map(literal, options)))
