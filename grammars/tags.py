"""Structural tags: free text with constrained regions, as clients describe them.

Two forms are in use: the older names triggers and structures (begin, schema, end), the newer is a tree of
formats. Both are read into the newer.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from grammars.base import GrammarError
from grammars.schema.document import keyword_at

_KEY = re.compile(r"[^.\[\]`]+")
_CONTENT = re.compile(r"(?<=\d)/content/json_schema")


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


def parse_tags(text: str) -> tuple[Format, bool]:
    """The format of a structural tag, and whether it is written in the older form.

    Raises:
        GrammarError: it is malformed.
    """
    try:
        outer = msgspec.json.decode(text, type=_Outer)
    except msgspec.MsgspecError as error:
        what, _, path = str(error).partition(" - at `$")
        pointer = "".join(f"/{key}" for key in _KEY.findall(path))
        raise _misfit(f"the structural tag is malformed: {what}", pointer) from error
    if outer.format is not None and outer.structures is None and outer.triggers is None:
        return outer.format, False
    if outer.format is None and outer.structures and outer.triggers:
        tags = [Tag(one.begin, JsonSchema(one.schema), one.end) for one in outer.structures]
        return TriggeredTags(outer.triggers, tags), True
    raise GrammarError("a structural tag has either a format, or structures and triggers")


def older_place(pointer: str) -> str:
    """Where in the older form stands what a pointer leads to in the newer."""
    pointer = _CONTENT.sub("/schema", pointer.removeprefix("/format"))
    return f"/structures{pointer.removeprefix('/tags')}" if pointer.startswith("/tags") else pointer


def check_triggers(tags: TriggeredTags, at: str) -> None:
    """Refuse triggers and tags that do not belong together.

    Args:
        at: the pointer to them.

    Raises:
        GrammarError: which; also where one is a part of another, so that both could be meant.
    """

    begins = [tag.begin for tag in tags.tags]
    for name, texts in (("tags", begins), ("triggers", tags.triggers)):
        if not texts:
            raise _misfit("there must be at least one", f"{at}/{name}")
    for index, begin in enumerate(begins):
        if not any(begin.startswith(trigger) for trigger in tags.triggers):
            raise _misfit(f"no trigger starts {begin!r}", f"{at}/tags/{index}/begin")
    for index, trigger in enumerate(tags.triggers):
        place = f"{at}/triggers/{index}"
        if not trigger:
            raise _misfit("a trigger must not be empty", place)
        if not any(begin.startswith(trigger) for begin in begins):
            raise _misfit(f"no tag starts with {trigger!r}", place)
    _check_apart(tags.triggers, at + "/triggers/{}")
    _check_apart(begins, at + "/tags/{}/begin")


def _check_apart(texts: list[str], place: str) -> None:
    for index, text in enumerate(texts):
        if any(text in other and index != number for number, other in enumerate(texts)):
            raise _misfit(f"{text!r} is part of another, so both could be meant", place.format(index))


def _misfit(what: str, pointer: str) -> GrammarError:
    return GrammarError(what, pointer=pointer, keyword=keyword_at(pointer, in_tags=True))
