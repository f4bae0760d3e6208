"""What has become certain of a JSON text while it is being written: values, and where they belong.

A string is certain with its closing quote, a literal with its last letter, a container with its bracket,
and a number with the character after it, or when the text is over. Values come in the order in which
they are complete, so a container comes after all that is in it, and the document comes last.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
from msgspec import UNSET, UnsetType

from app.errors import bad_request
from app.protocol import SamplingFields
from app.structured import FieldConstraint
from engine.stream import Update
from grammars.json_pointer import escape

_FIELD = "stream_options.include_json_events"
_JSON = frozenset({"json_schema", "json_object"})

_QUOTE_OR_ESCAPE = re.compile(r'["\\]')
_NO_NUMBER = re.compile(r"[^0-9+\-.eE]")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_LITERALS = {"t": "true", "f": "false", "n": "null"}
_BLANKS = " \t\n\r"
_ONE_LINE = str.maketrans("\n\r", "  ")
"""Strings hold no line breaks, so only blanks between values change."""


class JsonEvent(msgspec.Struct, frozen=True):
    pointer: str
    """Where in the document (RFC 6901); "" is all of it."""
    value: msgspec.Raw
    """As it was written."""
    tool_call: int | UnsetType = UNSET
    """Index of the call whose arguments are the document; absent where it is the answer's text."""


@dataclass(frozen=True, slots=True)
class JsonEventPlan:
    """Of which JSON in an answer the stream is to tell what is complete."""

    in_text: bool
    in_calls: bool
    is_ensured: bool
    """Whether a text that its budget ends is whole too."""

    def text_reader(self) -> JsonEventReader | None:
        return JsonEventReader() if self.in_text else None

    def call_reader(self, index: int) -> JsonEventReader | None:
        return JsonEventReader(index) if self.in_calls else None

    def ends_whole(self, update: Update) -> bool:
        """Whether a constrained text ended where its grammar let it, so that nothing cut it off."""
        if update.finish_reason == "length":
            return self.is_ensured
        return update.finish_reason == "stop" and update.stop_reason is None


NO_JSON_EVENTS = JsonEventPlan(in_text=False, in_calls=False, is_ensured=False)


def plan_json_events(
    request: SamplingFields, constraint: FieldConstraint | None, *, may_call: bool = False
) -> JsonEventPlan:
    """What `include_json_events` asks for.

    Args:
        may_call: whether the answer may hold calls of tools, whose arguments are JSON.

    Raises:
        ApiError: 400; it is asked for, and nothing makes any part of the answer JSON.
    """
    if request.stream_options is None or not request.stream_options.include_json_events:
        return NO_JSON_EVENTS
    in_text = not may_call and constraint is not None and constraint.constraint.kind in _JSON
    if not (may_call or in_text):
        raise bad_request(f"{_FIELD} needs tools, a response_format or another constraint to JSON.", _FIELD)
    return JsonEventPlan(in_text=in_text, in_calls=may_call, is_ensured=request.ensure_complete is not False)


@dataclass(slots=True)
class _Container:
    start: int
    is_object: bool
    step: str = ""
    """The pointer's step to the member that is being read."""
    index: int = 0


class JsonEventReader:
    """Reads one text in pieces; what it tells does not depend on how the text is cut.

    A text that turns out not to be JSON tells nothing from there on.

    Args:
        tool_call: index of the call whose arguments it reads, if it does.
    """

    def __init__(self, tool_call: int | UnsetType = UNSET) -> None:
        self._tool_call = tool_call
        self._text = ""
        self._open: list[_Container] = []
        self._start = 0
        """Of the key, string, number or literal that is being read."""
        self._is_key = False
        self._state: Callable[[int], int] = self._value
        """Reads on from a place; gives the place that the next state reads on from."""
        self._events: list[JsonEvent] = []

    def feed(self, text: str) -> list[JsonEvent]:
        """The values that `text`, the next piece, completes."""
        at = len(self._text)
        self._text += text
        while at < len(self._text):
            at = self._state(at)
        return self._take()

    def end(self) -> list[JsonEvent]:
        """The values that are complete because nothing follows."""
        if self._state == self._number and not self._open:
            self._end_number(len(self._text))
        return self._take()

    def _take(self) -> list[JsonEvent]:
        taken, self._events = self._events, []
        return taken

    # -- states ------------------------------------------------------------------------------------

    def _value(self, at: int) -> int:
        self._start, char = at, self._text[at]
        match char:
            case '"':
                self._is_key, self._state = False, self._string
            case "{":
                self._open.append(_Container(at, is_object=True))
                self._state = self._key_or_end
            case "[":
                self._open.append(_Container(at, is_object=False, step="/0"))
                self._state = self._item_or_end
            case "t" | "f" | "n":
                self._state = self._literal
            case _ if char in "-0123456789":
                self._state = self._number
            case _:
                self._skip(char)
        return at + 1

    def _item_or_end(self, at: int) -> int:
        if self._text[at] == "]":
            return self._close(at)
        if self._text[at] not in _BLANKS:
            return self._value(at)
        return at + 1

    def _key_or_end(self, at: int) -> int:
        return self._close(at) if self._text[at] == "}" else self._key(at)

    def _key(self, at: int) -> int:
        if self._text[at] == '"':
            self._start, self._is_key, self._state = at, True, self._string
        else:
            self._skip(self._text[at])
        return at + 1

    def _string(self, at: int) -> int:
        found = _QUOTE_OR_ESCAPE.search(self._text, at)
        if found is None:
            return len(self._text)
        if found[0] == "\\":
            self._state = self._escaped
        elif self._is_key:
            self._open[-1].step = "/" + _step(self._text[self._start : found.end()])
            self._state = self._colon
        else:
            self._complete(self._start, found.end())
        return found.end()

    def _escaped(self, at: int) -> int:
        self._state = self._string
        return at + 1

    def _colon(self, at: int) -> int:
        if self._text[at] == ":":
            self._state = self._value
        else:
            self._skip(self._text[at])
        return at + 1

    def _number(self, at: int) -> int:
        found = _NO_NUMBER.search(self._text, at)
        if found is None:
            return len(self._text)
        self._end_number(found.start())
        return found.start()

    def _literal(self, at: int) -> int:
        literal = _LITERALS[self._text[self._start]]
        read = self._text[self._start : min(len(self._text), self._start + len(literal))]
        if not literal.startswith(read):
            self._state = self._nothing
        elif read == literal:
            self._complete(self._start, self._start + len(literal))
        return self._start + len(read)

    def _after(self, at: int) -> int:
        container, char = self._open[-1], self._text[at]
        if char == ("}" if container.is_object else "]"):
            return self._close(at)
        if char != ",":
            self._skip(char)
        elif container.is_object:
            self._state = self._key
        else:
            container.index += 1
            container.step = f"/{container.index}"
            self._state = self._value
        return at + 1

    def _nothing(self, at: int) -> int:
        return len(self._text)

    # -- transitions -------------------------------------------------------------------------------

    def _skip(self, char: str) -> None:
        """Pass over a blank; anything else is not JSON."""
        if char not in _BLANKS:
            self._state = self._nothing

    def _close(self, at: int) -> int:
        self._complete(self._open.pop().start, at + 1)
        return at + 1

    def _end_number(self, stop: int) -> None:
        if _NUMBER.fullmatch(self._text, self._start, stop):
            self._complete(self._start, stop)
        else:
            self._state = self._nothing

    def _complete(self, start: int, stop: int) -> None:
        pointer = "".join(container.step for container in self._open)
        value = self._text[start:stop].translate(_ONE_LINE)
        self._events.append(JsonEvent(pointer, msgspec.Raw(value.encode()), self._tool_call))
        self._state = self._after if self._open else self._nothing


def _step(key: str) -> str:
    """A key as JSON writes it, as a pointer has it; half of a surrogate pair is U+FFFD there."""
    text: str = json.loads(key, strict=False)
    text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return escape(text)
