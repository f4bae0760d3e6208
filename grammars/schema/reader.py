"""Following the output of a schema's grammar, byte by byte: where it stands, and what was there before."""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache

from grammars.regular.ast import ANYTHING, NOTHING, Regex, Repeat, is_free, length
from grammars.regular.derivative import derive_text
from grammars.schema.partial import read
from grammars.schema.points import (
    ROOT,
    Identity,
    Item,
    Language,
    Level,
    Mode,
    OffGrammarError,
    Point,
    Position,
    RepeatedError,
    Value,
)
from grammars.schema.steps_left import is_multiple, may_be_multiple
from grammars.schema.tables import Part, Tables

_BLANKS = frozenset(b" \t\n\r")
_BARE = frozenset(b"-+.0123456789abcdefghijklmnopqrstuvwxyzE")
_REAL = re.compile("[.eE]")


class Reader:
    """Follows output along the tables of a schema. Stateless but for caches; safe to share."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self._steps: dict[Position, tuple[tuple[Part, Position], ...]] = {}
        self._finals: dict[Position, bool] = {}
        self._derive = lru_cache(maxsize=4096)(derive_text)
        level = Level(None, ())
        self.start = Point(Mode.VALUE, level, values=(Value(0, Item(ROOT, 0)),))

    def advance(self, point: Point, data: bytes) -> Point:
        """The point after `data`.

        Raises:
            RepeatedError: it repeats what must not come twice.
            OffGrammarError: it does not fit.
        """
        point, end = self.advance_within(point, data)
        if data[end:].strip(b" \t\r\n"):
            raise OffGrammarError
        return point

    def advance_within(self, point: Point, data: bytes) -> tuple[Point, int]:
        """As `advance`, but up to the end of the value; also gives how many bytes of `data` that took."""
        at = 0
        while at < len(data) and point.mode != Mode.DONE:
            if point.mode in (Mode.KEY, Mode.QUOTED):
                point, at = self._quoted(point, data, at)
            elif point.mode == Mode.BARE and data[at] in _BARE:
                end = at
                while end < len(data) and data[end] in _BARE:
                    end += 1
                point = self._bare(point, data[at:end].decode())
                at = end
            else:
                if point.mode == Mode.BARE:
                    point = self._end_bare(point)
                    continue
                point = self._token(point, data[at])
                at += 1
        return point, at

    def steps(self, position: Position) -> tuple[tuple[Part, Position], ...]:
        """The elements that may come at a position, and the positions after them."""
        known = self._steps.get(position)
        if known is None:
            known = self._steps[position] = tuple(self._find_steps(position))
        return known

    def may_end(self, position: Position) -> bool:
        """Whether the sequence may end at a position."""
        known = self._finals.get(position)
        if known is None:
            known = self._finals[position] = self._find_end(position)
        return known

    def _find_end(self, position: Position) -> bool:
        number, count = position.place, position.passed
        while number >= 0:
            place = self.tables.places[number]
            if count:
                return count >= place.tail_low
            if place.final or (place.tail and place.tail_low == 0):
                return True
            number = place.skip
        return False

    def _find_steps(self, position: Position) -> list[tuple[Part, Position]]:
        steps: list[tuple[Part, Position]] = []
        number = position.place
        while number >= 0:
            place = self.tables.places[number]
            if not position.passed:
                steps += [(part, Position(target)) for part, target in place.edges]
                steps += [(part, Position(number)) for part in place.loop]
            if place.tail_high is None or position.passed < place.tail_high:
                # Beyond the least that must come, one more makes no difference unless there is a most.
                enough = max(1, place.tail_low) if place.tail_high is None else place.tail_high
                count = min(position.passed + 1, enough)
                for bit, part in enumerate(place.tail):
                    if not place.distinct:
                        steps.append((part, Position(number, count)))
                    elif not position.taken >> bit & 1:
                        steps.append((part, Position(number, position.passed + 1, position.taken | 1 << bit)))
            number = -1 if position.passed else place.skip
        return steps

    def _token(self, point: Point, byte: int) -> Point:
        """The point after a byte outside of strings and numbers."""
        if byte in _BLANKS:
            return replace(point, blanks=point.blanks + bytes((byte,)))
        match point.mode, chr(byte):
            case Mode.BETWEEN, ",":
                after = replace(point, mode=Mode.COMMA, blanks=b"")
            case ((Mode.OPENED | Mode.BETWEEN), ("]" | "}")):
                after = self._close(point)
            case ((Mode.OPENED | Mode.COMMA), '"') if point.level.is_object:
                after = self._open_key(point)
            case ((Mode.OPENED | Mode.COMMA), char) if not point.level.is_object:
                after = self._open_value(point.level, self._elements(point.items), char)
            case Mode.COLON, ":":
                after = replace(point, mode=Mode.VALUE, blanks=b"")
            case Mode.VALUE, char:
                after = self._open_value(point.level, point.values, char)
            case _:
                raise OffGrammarError
        return after

    def _open_key(self, point: Point) -> Point:
        languages = dict.fromkeys(
            part.key.regex
            for item in point.items
            for part, _ in self.steps(item.position)
            if part.key is not None and part.key.regex is not None
        )
        return Point(Mode.KEY, point.level, point.items, names=tuple((regex, regex) for regex in languages))

    def _elements(self, items: tuple[Item, ...]) -> tuple[Value, ...]:
        return tuple(
            Value(part.rule, Item(after, item.up))
            for item in items
            for part, after in self.steps(item.position)
        )

    def _open_value(self, level: Level, values: tuple[Value, ...], char: str) -> Point:
        rules = self.tables.rules
        if char in "[{":
            return self._open_sequence(level, values, is_object=char == "{")
        texts: list[tuple[Language, Item]] = [
            (text.regex, value.then)
            for value in values
            for text in rules[value.rule].texts
            if text.quoted == (char == '"')
        ]
        if char == '"':
            if not texts:
                raise OffGrammarError
            return Point(Mode.QUOTED, level, texts=tuple(dict.fromkeys(texts)))
        texts += [(m, value.then) for value in values for m in rules[value.rule].multiples]
        return self._bare(Point(Mode.BARE, level, texts=tuple(dict.fromkeys(texts))), char)

    def _open_sequence(self, level: Level, values: tuple[Value, ...], *, is_object: bool) -> Point:
        back = tuple(dict.fromkeys(value.then for value in values))
        indexes = {item: index for index, item in enumerate(back)}
        starts = [
            (start, indexes[value.then])
            for value in values
            for start in self.tables.rules[value.rule].sequences
            if start.is_object == is_object
        ]
        if not starts:
            raise OffGrammarError
        items = tuple(dict.fromkeys(Item(Position(start.place), up) for start, up in starts))
        distinct = any(start.distinct for start, _ in starts)
        recorded = level.recorded or level.distinct
        return Point(Mode.OPENED, Level(level, back, is_object, distinct, recorded=recorded), items=items)

    def _close(self, point: Point) -> Point:
        level = point.level
        ups = dict.fromkeys(item.up for item in point.items if self.may_end(item.position))
        if level.parent is None or not ups:
            raise OffGrammarError
        same = level.identity if level.recorded else None
        return self._after_value(level.parent, tuple(level.back[up] for up in ups), same)

    def _after_value(self, level: Level, items: tuple[Item, ...], same: Identity | None) -> Point:
        """The point behind a value; `same`: its identity, if it may be compared."""
        if not items:
            raise OffGrammarError
        if level.parent is None:
            return Point(Mode.DONE, level)
        if level.distinct:
            level = _noted(level, same)
        if level.recorded:
            level = replace(level, parts=(*level.parts, (level.key, same) if level.is_object else same))
        return Point(Mode.BETWEEN, level, items=tuple(dict.fromkeys(items)))

    def _quoted(self, point: Point, data: bytes, at: int) -> tuple[Point, int]:
        """Read on in a string; the point and how far it came."""
        rest = point.rest
        try:
            text, left, closed = read(rest + data[at:])
        except ValueError as error:  # not UTF-8
            raise OffGrammarError from error
        after = replace(point, text=point.text + text, rest=b"" if closed else left)
        if point.mode == Mode.QUOTED:
            point = replace(after, texts=self._continue(point.texts, text))
        else:
            names = ((name, self._derive(going, text)) for name, going in point.names)
            point = replace(after, names=tuple(pair for pair in names if pair[1] != NOTHING))
        if not closed:
            return point, len(data)
        end = len(data) - len(left) + 1
        return (self._end_key(point) if point.mode == Mode.KEY else self._end_text(point)), end

    def _continue(
        self, texts: tuple[tuple[Language, Item], ...], text: str
    ) -> tuple[tuple[Language, Item], ...]:
        going = []
        for language, item in texts:
            assert isinstance(language, Regex)
            after = _after_free(language, text) if is_free(language) else self._derive(language, text)
            if after != NOTHING:
                going.append((after, item))
        if not going:
            raise OffGrammarError
        return tuple(going)

    def _end_text(self, point: Point) -> Point:
        items = tuple(i for language, i in point.texts if isinstance(language, Regex) and language.nullable)
        return self._after_value(point.level, items, identity(f'"{point.text}'))

    def _end_key(self, point: Point) -> Point:
        name = point.text
        whole = {regex for regex, going in point.names if going.nullable}
        values = tuple(
            Value(part.rule, Item(after, item.up))
            for item in point.items
            for part, after in self.steps(item.position)
            if part.key is not None and (part.key.name == name or part.key.regex in whole)
        )
        if not values:
            raise OffGrammarError
        level = _noted(point.level, name)
        return Point(Mode.COLON, replace(level, key=name) if level.recorded else level, values=values)

    def _bare(self, point: Point, text: str) -> Point:
        texts = []
        for language, item in point.texts:
            if isinstance(language, Regex):
                after: Language = self._derive(language, text)
            else:
                after = language if may_be_multiple(point.text + text) else NOTHING
            if after != NOTHING:
                texts.append((after, item))
        if not texts:
            raise OffGrammarError
        return Point(Mode.BARE, point.level, texts=tuple(texts), text=point.text + text)

    def _end_bare(self, point: Point) -> Point:
        return self._after_value(point.level, self.complete(point), identity(point.text))

    def complete(self, point: Point) -> tuple[Item, ...]:
        """The items of those readings for which a number or name is whole."""
        return tuple(
            item
            for language, item in point.texts
            if (language.nullable if isinstance(language, Regex) else is_multiple(language, point.text))
        )


def identity(written: str) -> str:
    """The same for equal values without parts: of a number its value, of a string a quote and its text.

    A number with a point or an exponent is the double it is read as.
    """
    try:
        return str(Fraction(float(written) if _REAL.search(written) else written))
    except ValueError:
        return written


def _noted(level: Level, what: Identity) -> Level:
    if what in level.seen:
        raise RepeatedError(what)
    return replace(level, seen=level.seen | {what})


def _after_free(language: Regex, text: str) -> Regex:
    """What is left of a bound on length alone after some characters."""
    if not isinstance(language, Repeat) or language == ANYTHING:
        return language
    count = len(text)
    if language.high is not None and count > language.high:
        return NOTHING
    high = None if language.high is None else language.high - count
    return length(max(0, language.low - count), high)
