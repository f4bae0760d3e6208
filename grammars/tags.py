"""Structural tags: free text with constrained regions, as clients describe them.

Two forms are in use: the older names triggers and structures (begin, schema, end), the newer is a tree of
formats. Both are read into the newer.
"""

from __future__ import annotations

from typing import Any

import msgspec

from grammars.base import GrammarError


class _Format(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type"):
    pass


class ConstString(_Format, frozen=True, tag="const_string"):
    """Exactly this text."""

    value: str


class JsonSchema(_Format, frozen=True, tag="json_schema"):
    """JSON that satisfies a schema."""

    json_schema: dict[str, Any] | bool


class AnyText(_Format, frozen=True, tag="any_text"):
    """Any text, up to the end of the tag it is in."""


class RegexText(_Format, frozen=True, tag="regex"):
    """Text that a regular expression matches."""

    pattern: str


class GrammarText(_Format, frozen=True, tag="grammar"):
    """Text of a grammar in GBNF."""

    grammar: str


class Sequence(_Format, frozen=True, tag="sequence"):
    """One after the other."""

    elements: list[Format]


class Or(_Format, frozen=True, tag="or"):
    """One of several."""

    elements: list[Format]


class Tag(_Format, frozen=True, tag="tag"):
    """`begin`, then the content, then `end`."""

    begin: str
    content: Format
    end: str


class TriggeredTags(_Format, frozen=True, tag="triggered_tags"):
    """Free text, in which each trigger is the beginning of one of the tags.

    Attributes:
        at_least_one: there is a tag.
        stop_after_first: nothing follows the first tag.
    """

    triggers: list[str]
    tags: list[Tag]
    at_least_one: bool = False
    stop_after_first: bool = False


class TagsWithSeparator(_Format, frozen=True, tag="tags_with_separator"):
    """Tags and nothing else, with a text between them."""

    tags: list[Tag]
    separator: str
    at_least_one: bool = False
    stop_after_first: bool = False


Format = (
    ConstString
    | JsonSchema
    | AnyText
    | RegexText
    | GrammarText
    | Sequence
    | Or
    | Tag
    | TriggeredTags
    | TagsWithSeparator
)


class _Structure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    begin: str
    schema: dict[str, Any] | bool
    end: str


class _Outer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: str = "structural_tag"
    format: Format | None = None
    structures: list[_Structure] | None = None
    triggers: list[str] | None = None


def parse_tags(text: str) -> Format:
    """The format of a structural tag.

    Raises:
        GrammarError: it is malformed, or a tag starts with no trigger.
    """
    try:
        outer = msgspec.json.decode(text, type=_Outer)
    except msgspec.MsgspecError as error:
        raise GrammarError(f"structural_tag: {error}") from error
    if outer.format is not None and outer.structures is None and outer.triggers is None:
        parsed = outer.format
    elif outer.format is None and outer.structures and outer.triggers:
        tags = [Tag(one.begin, JsonSchema(one.schema), one.end) for one in outer.structures]
        parsed = TriggeredTags(outer.triggers, tags)
    else:
        raise GrammarError("structural_tag: either a format, or structures and triggers")
    return parsed


def check_triggers(tags: TriggeredTags) -> None:
    """Refuse triggers and tags that do not belong together.

    Raises:
        GrammarError: which; also where one is a part of another, so that both could be meant.
    """
    if not tags.triggers or not tags.tags or "" in tags.triggers:
        raise GrammarError("structural_tag: triggers and tags must not be empty")
    for tag in tags.tags:
        if not any(tag.begin.startswith(trigger) for trigger in tags.triggers):
            raise GrammarError(f"structural_tag: no trigger starts {tag.begin!r}")
    for texts in (tags.triggers, [tag.begin for tag in tags.tags]):
        for text in texts:
            if any(text in other and text is not other for other in texts):
                raise GrammarError(f"structural_tag: {text!r} is part of another of its kind")
    for trigger in tags.triggers:
        if not any(tag.begin.startswith(trigger) for tag in tags.tags):
            raise GrammarError(f"structural_tag: no tag starts with {trigger!r}")
