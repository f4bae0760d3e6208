"""From a constraint to a grammar in llguidance's own format, and what else is known of its sentences."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec
from llguidance import LLMatcher

from grammars.base import GrammarError, UnsatisfiableError
from grammars.gbnf import parse_gbnf
from grammars.gbnf_lark import translate
from grammars.lark_rules import lark_rules
from grammars.limits import check_limits
from grammars.recursive_tables import RecursiveTables, recursive_tables
from grammars.recursive_tracker import RecursiveTracker
from grammars.regular.ast import Regex, intersect, length
from grammars.regular.classes import COMMON
from grammars.regular.lark import grammar
from grammars.regular.pattern_syntax import PatternError
from grammars.regular.patterns import full_language
from grammars.regular.questions import TooManyStatesError, shortest
from grammars.regular.texts import one_of
from grammars.schema.build import build
from grammars.schema.closing import MAX_BYTES
from grammars.schema.document import keyword_at
from grammars.schema.emit import emit
from grammars.schema.sizes import settle
from grammars.schema.tables import Tables, freeze
from grammars.spec import Constraint, Kind, Start
from grammars.tag_tables import TagTables
from grammars.tags import Format, JsonSchema, TriggeredTags, older_place, parse_tags
from grammars.tags_lark import TagWriter, inside

Sentences = Tables | TagTables | Regex | RecursiveTables
"""JSON of a schema, text with tags that hold JSON, a regular language, or a grammar that recurs."""


@dataclass(frozen=True)
class Lowered:
    """A grammar to compile.

    Attributes:
        source: in llguidance's format.
        sentences: what its sentences are, if that is known.
        starts: beginnings of texts: what follows them is to be tried out as well.
    """

    source: str
    sentences: Sentences | None = None
    starts: tuple[Start, ...] = ()


def lower(constraint: Constraint) -> Lowered:
    """The grammar to compile.

    Raises:
        GrammarError: what of the constraint cannot be enforced, and where it stands.
    """
    check_limits(constraint)
    return _LOWERINGS[constraint.kind](constraint)


def _json_object(constraint: Constraint) -> Lowered:
    return _json('{"type":"object"}', constraint)


def _json_schema(constraint: Constraint) -> Lowered:
    return _json(constraint.spec, constraint)


def _json(schema: str, constraint: Constraint) -> Lowered:
    root = build(schema, constraint.json)
    settle(root)
    if root.size == math.inf:
        raise UnsatisfiableError("no value satisfies the schema")
    if root.size > MAX_BYTES:
        # Nobody could tell whether a budget is enough for it, nor lead to its end.
        raise GrammarError(f"the shortest value has {root.size:.0f} bytes, more than {MAX_BYTES}")
    return Lowered(emit(root, constraint.json), freeze(root), constraint.starts)


def _regex(constraint: Constraint) -> Lowered:
    try:
        language = full_language(constraint.spec, COMMON)
    except PatternError as error:
        # What we do not read, the engine may: flags, word boundaries.
        source = LLMatcher.grammar_from_regex(constraint.spec)
        if LLMatcher.validate_grammar(source):
            raise GrammarError(str(error)) from error
        return Lowered(source)
    return _regular(language)


def _choice(constraint: Constraint) -> Lowered:
    try:
        options = msgspec.json.decode(constraint.spec, type=list[str])
    except msgspec.MsgspecError as error:
        raise GrammarError(f"a choice is a list of texts: {error}") from error
    return _regular(one_of(options))


def _lark(constraint: Constraint) -> Lowered:
    rules = lark_rules(constraint.spec)
    tables = None if rules is None else recursive_tables(rules, exact=False)
    return Lowered(LLMatcher.grammar_from_lark(constraint.spec), _followed(tables))


def _gbnf(constraint: Constraint) -> Lowered:
    translation = translate(parse_gbnf(constraint.spec))
    sentences = translation.sentences
    if not isinstance(sentences, Regex):
        sentences = _followed(sentences)
    return Lowered(LLMatcher.grammar_from_lark(translation.source), sentences)


def _followed(tables: RecursiveTables | None) -> RecursiveTables | None:
    """The tables, if texts can be followed by them; tried here, where it may take its time."""
    return tables if tables is not None and RecursiveTracker(tables).follows_shortest() else None


def _tags(constraint: Constraint) -> Lowered:
    form, is_older = parse_tags(constraint.spec)
    try:
        return _tagged(form, constraint)
    except GrammarError as error:
        if not is_older:
            raise
        pointer = older_place(error.pointer)
        keyword = error.keyword and keyword_at(pointer, in_tags=True)
        raise type(error)(error.message, pointer=pointer, keyword=keyword) from error


def _tagged(form: Format, constraint: Constraint) -> Lowered:
    if isinstance(form, JsonSchema):
        with inside("/format/json_schema"):
            return _json(msgspec.json.encode(form.json_schema).decode(), constraint)
    writer = TagWriter(constraint.json)
    source = LLMatcher.grammar_from_lark(writer.write(form))
    tables = {key: freeze(rule) for key, rule in writer.rules.items()}
    if isinstance(form, TriggeredTags) and all(id(tag.content) in tables for tag in form.tags):
        tags = tuple((tag.begin.encode(), tag.end.encode(), tables[id(tag.content)]) for tag in form.tags)
        triggers = tuple(trigger.encode() for trigger in form.triggers)
        tables_of_tags = TagTables(tags, triggers, form.at_least_one, form.stop_after_first)
        return Lowered(source, tables_of_tags, tuple(Start(tag.begin) for tag in form.tags))
    for key, table in tables.items():
        if table.has_names or table.has_distinct:
            raise GrammarError(
                "every object needs additionalProperties: false here (else a name could come twice), and "
                "uniqueItems is not supported, for this is not the content of triggered_tags of schemas only",
                pointer=writer.places[key],
            )
    return Lowered(source)


def _regular(language: Regex) -> Lowered:
    """The texts of a regular language, of which one must not be empty."""
    try:
        word = shortest(intersect((language, length(1, None))))
    except TooManyStatesError:
        raise GrammarError("grammar too complex: its automaton has too many states") from None
    if word is None:
        raise GrammarError("no text satisfies it but the empty one")
    return Lowered(LLMatcher.grammar_from_lark(grammar(language)), language)


_LOWERINGS: Final[dict[Kind, Callable[[Constraint], Lowered]]] = {
    "json_object": _json_object,
    "json_schema": _json_schema,
    "regex": _regex,
    "choice": _choice,
    "lark": _lark,
    "gbnf": _gbnf,
    "structural_tag": _tags,
}
