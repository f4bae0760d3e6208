"""From structural tags to llguidance's Lark dialect."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from grammars.base import GrammarError, UnsatisfiableError
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
        raise UnsatisfiableError("no value satisfies the schema")
    return root


class TagWriter:
    """Writes the grammar of a format.

    Attributes:
        rules: the rule of each schema in it, by the identity of its format.
        places: the pointers to these schemas.
    """

    def __init__(self, options: JsonOptions) -> None:
        self.rules: dict[int, Rule] = {}
        self.places: dict[int, str] = {}
        self._options = options
        self._emitter = Emitter(options)

    def write(self, form: Format) -> str:
        """The whole grammar.

        Raises:
            GrammarError: a part that cannot be enforced; its pointer is into the form, at `/format`.
        """
        start = self._format(form, "/format")
        return "\n".join(["%llguidance {}", f"start: {start}", *self._emitter.lines(), ""])

    def _format(self, form: Format, at: str) -> str:
        """What matches a format that stands at a place."""
        match form:
            case JsonSchema():
                place = f"{at}/json_schema"
                with inside(place):
                    rule = schema_rule(form, self._options)
                self.rules[id(form)] = rule
                self.places[id(form)] = place
                text = self._emitter.add(rule)
            case Sequence(elements=elements):
                for index, element in enumerate(elements[:-1]):
                    if isinstance(element, AnyText):
                        place = f"{at}/elements/{index}"
                        raise GrammarError(
                            "any_text must be the last of a sequence", pointer=place, keyword="elements"
                        )
                text = " ".join(self._all(elements, f"{at}/elements"))
            case Or(elements=elements):
                text = f"({' | '.join(self._all(elements, f'{at}/elements'))})"
            case Tag():
                text = f"{self._terminal(literal(form.begin))} {self._content(form, at)}"
            case TriggeredTags():
                text = self._triggered(form, at)
            case TagsWithSeparator():
                text = self._separated(form, at)
            case _:
                text = self._terminal(_language(form, at))
        return text

    def _all(self, forms: list[Format] | list[Tag], at: str) -> list[str]:
        return [self._format(form, f"{at}/{index}") for index, form in enumerate(forms)]

    def _content(self, tag: Tag, at: str) -> str:
        """The content of a tag, and its end."""
        if isinstance(tag.content, AnyText):
            return self._terminal(first_time(literal(tag.end)) if tag.end else ANYTHING)
        return f"{self._format(tag.content, f'{at}/content')} {self._terminal(literal(tag.end))}"

    def _triggered(self, tags: TriggeredTags, at: str) -> str:
        check_triggers(tags, at)
        anywhere = alt(map(literal, tags.triggers))
        options = []
        for trigger in tags.triggers:
            # Free text, up to the first place where it could go on as any of the tags.
            lead = self._terminal(intersect((first_time(anywhere), concat((ANYTHING, literal(trigger))))))
            begun = [(i, tag) for i, tag in enumerate(tags.tags) if tag.begin.startswith(trigger)]
            rests = [
                f"{self._terminal(literal(tag.begin[len(trigger) :]))} {self._content(tag, f'{at}/tags/{i}')}"
                for i, tag in begun
            ]
            options.append(f"{lead} ({' | '.join(rests)})")
        one = f"({' | '.join(options)})"
        free = self._terminal(complement(concat((ANYTHING, anywhere, ANYTHING))))
        if tags.stop_after_first:
            return one if tags.at_least_one else f"({one} | {free})"
        return f"{one}{'+' if tags.at_least_one else '*'} {free}"

    def _separated(self, tags: TagsWithSeparator, at: str) -> str:
        one = f"({' | '.join(self._all(tags.tags, f'{at}/tags'))})"
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


@contextmanager
def inside(at: str, keyword: str | None = None) -> Iterator[None]:
    """Gives refusals of what stands at a place a pointer from outside, and a keyword if they have none."""
    try:
        yield
    except GrammarError as error:
        keyword = error.keyword or keyword
        raise type(error)(error.message, pointer=at + error.pointer, keyword=keyword) from error


def _language(form: Format, at: str) -> Regex:
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
                raise GrammarError(str(error), pointer=f"{at}/pattern", keyword="pattern") from error
        case GrammarText(grammar=grammar):
            with inside(f"{at}/grammar", "grammar"):
                language = translate(parse_gbnf(grammar)).sentences
                if not isinstance(language, Regex):
                    raise GrammarError("a grammar that recurs is not supported in a structural tag")
                return language
    raise TypeError(form)
