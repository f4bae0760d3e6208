"""Reading tool calls out of an answer's text while it is being generated.

A splitter takes the text in pieces of any size and says what it is: content, the start of a call, more
of a call's arguments. What it says in total depends on the text alone, not on how it was cut. The
arguments of a call join to exactly the JSON the model wrote.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

import msgspec
import regex

from engine.stream import FinishReason, Update


class Content(msgspec.Struct, frozen=True):
    text: str


class Reasoning(msgspec.Struct, frozen=True):
    """What a model that thinks wrote between `<think>` and `</think>`."""

    text: str


class CallStart(msgspec.Struct, frozen=True):
    index: int
    id: str
    name: str


class CallArguments(msgspec.Struct, frozen=True):
    index: int
    text: str


Piece = Content | Reasoning | CallStart | CallArguments


class Splitter(Protocol):
    """Reads one choice."""

    def feed(self, text: str) -> list[Piece]:
        """What the next piece of the answer is; text that could still turn out otherwise is held back."""
        ...

    def finish(self) -> list[Piece]:
        """What was held back, now that the answer has ended."""
        ...

    def finish_reason(self, reason: FinishReason) -> str:
        """The wire's finish reason for an answer that ended for `reason`."""
        ...


def pieces_of(splitter: Splitter, update: Update) -> list[Piece]:
    """What a choice's new output is, and what was held back once it has ended."""
    pieces = splitter.feed(update.text)
    return pieces if update.finish_reason is None else [*pieces, *splitter.finish()]


class PlainText:
    """All of it is content."""

    def feed(self, text: str) -> list[Piece]:
        return [Content(text)] if text else []

    def finish(self) -> list[Piece]:
        return []

    def finish_reason(self, reason: FinishReason) -> str:
        return reason


class NamedCall:
    """All of it is the arguments of one call. Ends with "stop", as OpenAI's named calls do."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._started = False

    def feed(self, text: str) -> list[Piece]:
        return [*self._start(), CallArguments(0, text)] if text else []

    def finish(self) -> list[Piece]:
        return self._start()

    def finish_reason(self, reason: FinishReason) -> str:
        return reason

    def _start(self) -> list[Piece]:
        if self._started:
            return []
        self._started = True
        return [CallStart(0, _call_id(), self._name)]


@dataclass(frozen=True, slots=True)
class CallFormat:
    """How a model writes calls. The patterns end where the arguments begin and name the group `name`."""

    first: regex.Pattern[str]
    """A call that the answer begins with."""
    next: regex.Pattern[str]
    """A call right after another one's arguments."""
    later: regex.Pattern[str]
    """A call within text."""
    closed: regex.Pattern[str]
    """What may follow the last call's arguments and is no content."""


_HEADER = r'\s*\{\s*"name"\s*:\s*"(?P<name>[^"\\]{1,64})"\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)'
_NAME = r"(?P<name>[a-zA-Z0-9_.-]{1,64})"
_CLOSE = r"\s*\}?\s*(?:</tool_call>|\])?\s*"
_OPEN = r"(?:<tool_call>|\[)?"
_PYTHON = r"(?:<\|python_tag\|>)?"
_MISTRAL = r"(?:\[TOOL_CALLS\])?\s*" + _NAME + r"(?:\[CALL_ID\]\w*)?(?:\[ARGS\])?\s*(?=\{)"
_NEVER = regex.compile(r"(?!)")


def _compiled(first: str, next_: str, later: str | None, closed: str) -> CallFormat:
    return CallFormat(
        regex.compile(first),
        regex.compile(next_),
        regex.compile(later) if later else _NEVER,
        regex.compile(r"\A" + closed),
    )


JSON_CALLS = _compiled(
    r"\s*" + _OPEN + _HEADER, _CLOSE + r"[,;]?\s*" + _OPEN + _HEADER, "<tool_call>" + _HEADER, _CLOSE
)
"""`{"name": NAME, "arguments": VALUE}`, between `<tool_call>` and `</tool_call>`, or as what the answer
begins with, alone or in an array. "parameters" may stand for "arguments"."""

HERMES_CALLS = _compiled(
    r"\s*<tool_call>" + _HEADER,
    r"\s*\}?\s*(?:</tool_call>)?\s*<tool_call>" + _HEADER,
    "<tool_call>" + _HEADER,
    r"\s*\}?\s*(?:</tool_call>)?\s*",
)
"""Of Hermes and Qwen: only what is between `<tool_call>` and `</tool_call>`."""

LLAMA3_CALLS = _compiled(
    r"\s*" + _PYTHON + _HEADER, r"\s*\}?\s*;?\s*" + _PYTHON + _HEADER, None, r"\s*\}?\s*"
)
"""Of Llama 3: `{"name": NAME, "parameters": VALUE}`, more of them after a semicolon."""

MISTRAL_CALLS = _compiled(
    rf"\s*(?:{_MISTRAL}|(?:\[TOOL_CALLS\])?\s*\[?{_HEADER})",
    rf"\s*(?:{_MISTRAL}|\}}?\s*,?\s*{_HEADER})",
    rf"\[TOOL_CALLS\]\s*(?:{_MISTRAL}|\[?{_HEADER})",
    r"\s*\}?\s*\]?\s*",
)
"""Of Mistral: `[TOOL_CALLS]` before an array of calls, or before each call's name, which `[ARGS]` may follow;
as special tokens these marks are mostly not part of the text."""

CALL_FORMATS = {
    "json": JSON_CALLS,
    "hermes": HERMES_CALLS,
    "llama3": LLAMA3_CALLS,
    "mistral": MISTRAL_CALLS,
}


class _At(Enum):
    BEGINNING = auto()
    TEXT = auto()
    ARGUMENTS = auto()
    AFTER_CALL = auto()
    END = auto()


class Calls:
    """Text with calls in it, in one format.

    Whatever turns out not to be a call of a known function is content.

    Args:
        names: the functions that may be called.
        single: only the first call counts; what follows it is dropped.
        form: how calls are written.
    """

    def __init__(self, names: frozenset[str], *, single: bool = False, form: CallFormat = JSON_CALLS) -> None:
        self._form = form
        self._names = names
        self._single = single
        self._calls = 0
        self._at = _At.BEGINNING
        self._held = ""
        """Text not yet given out."""
        self._value = _Value()

    def feed(self, text: str) -> list[Piece]:
        self._held += text
        pieces: list[Piece] = []
        while self._held and self._at is not _At.END and self._advance(pieces):
            pass
        return pieces

    def finish(self) -> list[Piece]:
        rest, self._held = self._held, ""
        if self._at is _At.AFTER_CALL:
            rest = self._form.closed.sub("", rest, count=1)
        return [Content(rest)] if rest and self._at is not _At.END else []

    def finish_reason(self, reason: FinishReason) -> str:
        return "tool_calls" if reason == "stop" and self._calls else reason

    def _advance(self, pieces: list[Piece]) -> bool:
        """Give out what is certain; False when more text is needed to go on."""
        match self._at:
            case _At.ARGUMENTS:
                return self._read_arguments(pieces)
            case _At.BEGINNING:
                found = self._form.first.match(self._held, partial=True)
            case _At.AFTER_CALL:
                found = self._form.next.match(self._held, partial=True)
            case _:
                found = self._form.later.search(self._held, partial=True)
        if found is None:
            return self._read_text(pieces)
        if found.partial:
            self._give_text(found.start(), pieces)
            return False
        if found["name"] not in self._names:
            if self._at is _At.TEXT:
                self._give_text(found.end(), pieces)
                return True
            return self._read_text(pieces)
        self._give_text(found.start(), pieces)
        pieces.append(CallStart(self._calls, _call_id(), found["name"]))
        self._held = self._held[found.end() - found.start() :]
        self._at, self._value = _At.ARGUMENTS, _Value()
        return True

    def _read_arguments(self, pieces: list[Piece]) -> bool:
        end = self._value.scan(self._held)
        pieces.append(CallArguments(self._calls, self._held[:end]))
        self._held = "" if end is None else self._held[end:]
        if end is not None:
            self._calls += 1
            self._at = _At.END if self._single else _At.AFTER_CALL
        return True

    def _read_text(self, pieces: list[Piece]) -> bool:
        """What is held begins no call."""
        if self._at is _At.TEXT:
            self._give_text(len(self._held), pieces)
        elif self._at is _At.AFTER_CALL:
            self._held = self._form.closed.sub("", self._held, count=1)
        self._at = _At.TEXT
        return True

    def _give_text(self, end: int, pieces: list[Piece]) -> None:
        if end:
            pieces.append(Content(self._held[:end]))
            self._held = self._held[end:]


class RequiredCalls(Calls):
    """An array of calls made under a grammar: nothing in it is content, and it may only be cut short."""

    _closed = False

    def finish(self) -> list[Piece]:
        self._closed = self._at is _At.AFTER_CALL and "]" in self._held
        return []

    def finish_reason(self, reason: FinishReason) -> str:
        return super().finish_reason(reason) if self._closed else reason


class _Value:
    """Finds the end of one JSON object that arrives in pieces."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def scan(self, text: str) -> int | None:
        """Index just behind the object's end in the next piece of it; None if it goes on."""
        for at, char in enumerate(text):
            if self._in_string:
                if self._escaped:
                    self._escaped = False
                elif char == "\\":
                    self._escaped = True
                elif char == '"':
                    self._in_string = False
            elif char == '"':
                self._in_string = True
            elif char in "{[":
                self._depth += 1
            elif char in "}]":
                self._depth -= 1
                if self._depth == 0:
                    return at + 1
        return None


def _call_id() -> str:
    return "call_" + secrets.token_hex(12)
