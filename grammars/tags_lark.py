"""From structural tags to llguidance's Lark dialect."""

from __future__ import annotations

import math

import msgspec

from grammars.base import GrammarError
from grammars.gbnf import parse_gbnf
from grammars.gbnf_lark import translate
from grammars.regular.ast import (
    ANY_CHAR,
    ANYTHING,
    EMPTY,
    Regex,
    alt,
    complement,
    concat,
    intersect,
    length,
    literal,
)
from grammars.regular.classes import COMMON
from grammars.regular.lark import PLAIN
from grammars.regular.pattern_syntax import PatternError
from grammars.regular.patterns import full_language
from grammars.schema.build import build
from grammars.schema.emit import Emitter
from grammars.schema.shapes import Rule
from grammars.schema.sizes import settle
from grammars.spec import JsonOptions
from grammars.tags import (
    AnyText,
    ConstString,
    Format,
    GrammarText,
    JsonSchema,
    Or,
    RegexText,
    Sequence,
    Tag,
    TagsWithSeparator,
    TriggeredTags,
    check_triggers,
)


def schema_rule(schema: JsonSchema, options: JsonOptions) -> Rule:
    """The settled rule of a schema in a tag.

    Raises:
        GrammarError: it cannot be enforced.
    """
    root = build(msgspec.json.encode(schema.json_schema).decode(), options)
    settle(root)
    if root.size == math.inf:
        raise GrammarError("no value satisfies the schema")
    return root


class TagWriter:
    """Writes the grammar of a format.

    Attributes:
        rules: the rule of each schema in it, by the identity of its format.
    """

    def __init__(self, options: JsonOptions) -> None:
        self.rules: dict[int, Rule] = {}
        self._options = options
        self._emitter = Emitter(options)

    def write(self, form: Format) -> str:
        """The whole grammar.

        Raises:
            GrammarError: a part that cannot be enforced.
        """
        start = self._format(form)
        return "\n".join(["%llguidance {}", f"start: {start}", *self._emitter.lines(), ""])

    def _format(self, form: Format) -> str:
        match form:
            case JsonSchema():
                rule = self.rules[id(form)] = schema_rule(form, self._options)
                text = self._emitter.add(rule)
            case Sequence(elements=elements):
                if any(isinstance(element, AnyText) for element in elements[:-1]):
                    raise GrammarError("structural_tag: any_text must be the last of a sequence")
                text = " ".join(map(self._format, elements))
            case Or(elements=elements):
                text = f"({' | '.join(map(self._format, elements))})"
            case Tag():
                text = f"{self._terminal(literal(form.begin))} {self._content(form)}"
            case TriggeredTags():
                text = self._triggered(form)
            case TagsWithSeparator():
                text = self._separated(form)
            case _:
                text = self._terminal(_language(form))
        return text

    def _content(self, tag: Tag) -> str:
        """The content of a tag, and its end."""
        if isinstance(tag.content, AnyText):
            return self._terminal(first_time(literal(tag.end)) if tag.end else ANYTHING)
        try:
            content = self._format(tag.content)
        except GrammarError as error:
            message = f"structural_tag: in the tag {tag.begin!r}: {error.message}"
            raise GrammarError(message, pointer=error.pointer, keyword=error.keyword) from error
        return f"{content} {self._terminal(literal(tag.end))}"

    def _triggered(self, tags: TriggeredTags) -> str:
        check_triggers(tags)
        anywhere = alt(map(literal, tags.triggers))
        options = []
        for trigger in tags.triggers:
            # Free text, up to the first place where it could go on as any of the tags.
            lead = self._terminal(intersect((first_time(anywhere), concat((ANYTHING, literal(trigger))))))
            begun = [tag for tag in tags.tags if tag.begin.startswith(trigger)]
            rests = [f"{self._terminal(literal(t.begin[len(trigger) :]))} {self._content(t)}" for t in begun]
            options.append(f"{lead} ({' | '.join(rests)})")
        one = f"({' | '.join(options)})"
        free = self._terminal(complement(concat((ANYTHING, anywhere, ANYTHING))))
        if tags.stop_after_first:
            return one if tags.at_least_one else f"({one} | {free})"
        return f"{one}{'+' if tags.at_least_one else '*'} {free}"

    def _separated(self, tags: TagsWithSeparator) -> str:
        one = f"({' | '.join(map(self._format, tags.tags))})"
        more = "" if tags.stop_after_first else f" ({self._terminal(literal(tags.separator))} {one})*"
        return f"{one}{more}" if tags.at_least_one else f"({one}{more})?"

    def _terminal(self, language: Regex) -> str:
        if language == EMPTY:
            return '""'
        inside = intersect((language, length(1, None))) if language.nullable else language
        name = self._emitter.terminal(PLAIN.terminal(inside))
        return f'({name} | "")' if language.nullable else name


def first_time(text: Regex) -> Regex:
    """Everything up to the first time that `text` occurs, inclusive."""
    earlier = concat((ANYTHING, text, ANY_CHAR, ANYTHING))
    return intersect((concat((ANYTHING, text)), complement(earlier)))


def _language(form: Format) -> Regex:
    """The language of a format without structure."""
    match form:
        case ConstString(value=value):
            return literal(value)
        case AnyText():
            return ANYTHING
        case RegexText(pattern=pattern):
            try:
                return full_language(pattern, COMMON)
            except PatternError as error:
                raise GrammarError(f"structural_tag: {error}") from error
        case GrammarText(grammar=grammar):
            language = translate(parse_gbnf(grammar)).sentences
            if not isinstance(language, Regex):
                raise GrammarError("structural_tag: a grammar that recurs is not supported in it")
            return language
    raise TypeError(form)
