"""Searching for an end of a value that repeats nothing, where the shortest one would."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from itertools import islice

from grammars.regular.ast import NOTHING, Regex, complement, intersect, literal
from grammars.regular.questions import TooManyStatesError, count_texts, words
from grammars.schema.endings import end_text, fresh_word
from grammars.schema.partial import write
from grammars.schema.points import (
    ROOT,
    Identity,
    Item,
    Language,
    Level,
    Mode,
    OffGrammarError,
    Point,
    RepeatedError,
    Value,
)
from grammars.schema.reader import Reader
from grammars.schema.shapes import Key, Text
from grammars.schema.steps_left import completions, whole_multiples
from grammars.schema.tables import Part

MAX_STEPS = 500
_MOST_ASKED = 16
"""Of more items that are asked for none are listed: to spell such an end takes over ten milliseconds."""
_MOST_LISTED = 1 << 12
_MAX_WORDS = 64
"""So many texts of one place are tried."""

Stop = Callable[[Point], bool]


class TooManyStepsError(Exception):
    """No end was found within the limit, though there may be one."""


class _CutError(Exception):
    """There are more pieces, which are not tried."""


class Search:
    """Looks for ends, short ones first, piece by piece and depth first. Safe to share.

    Where all items of an array of distinct ones are of one rule, values of that are listed once and taken
    from the list, so that not each item of an end is searched for among all that come before it.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._tables = reader.tables
        self._lock = threading.RLock()
        self._listed: dict[int, _Listed] = {}

    def find(self, point: Point, stop: Stop, most: int = MAX_STEPS) -> bytes | None:
        """Bytes that lead to a point at which `stop` is true, without a repetition; None if none do.

        Args:
            most: steps.

        Raises:
            TooManyStepsError: not found out within the limit.
        """
        for steps, found in enumerate(self._walk(point, stop)):
            if found is not None:
                return found[0]
            if steps == most:
                raise TooManyStepsError
        return None

    def _walk(self, point: Point, stop: Stop) -> Iterator[tuple[bytes, Point] | None]:
        """Of each step, bytes that lead to a point at which `stop` is true, and that point, or None.

        Raises:
            TooManyStepsError: at the end, if something was left out.
        """
        texts = [b""]
        stack = [(point, self._pieces(point))]
        cut = False
        while stack:
            here, pieces = stack[-1]
            piece = None
            if stop(here):
                yield b"".join(texts), here
            else:
                try:
                    piece = next(pieces, None)
                except _CutError:
                    cut = True
            if piece is None:
                stack.pop()
                texts.pop()
                continue
            yield None
            try:
                after = self._reader.advance(here, piece)
            except (RepeatedError, OffGrammarError):
                continue
            stack.append((after, self._pieces(after)))
            texts.append(piece)
        if cut:
            raise TooManyStepsError

    def _pieces(self, point: Point) -> Iterator[bytes]:
        """What may come next, each as one piece (_CutError: and more)."""
        is_object = point.level.is_object
        match point.mode:
            case Mode.OPENED | Mode.BETWEEN:
                if any(self._reader.may_end(item.position) for item in point.items):
                    yield b"}" if is_object else b"]"
                yield from [b","] if point.mode == Mode.BETWEEN else self._elements(point)
            case Mode.COMMA:
                yield from self._elements(point)
            case Mode.KEY:
                yield from self._key_ends(point)
            case Mode.COLON:
                yield b":"
            case Mode.VALUE:
                yield from self._values(point.values)
            case Mode.QUOTED | Mode.BARE:
                yield from self._text_ends(point)

    def _elements(self, point: Point) -> Iterator[bytes]:
        steps = [step for item in point.items for step in self._reader.steps(item.position)]
        places = self._tables.places
        steps.sort(key=lambda step: step[0].size + places[step[1].place].size)
        if point.level.is_object:
            yield from _each(self._names(part, point.level) for part, _ in steps)
            return
        rules = list(dict.fromkeys(part.rule for part, _ in steps))
        are_alike = len(rules) == 1 and self._tables.rules[rules[0]].sequences
        if (
            point.level.distinct
            and are_alike
            and all(places[item.position.place].tail_low <= _MOST_ASKED for item in point.items)
        ):
            yield from self._items(rules[0], point.level)
        else:
            yield from self._rule_values(rules)

    def _items(self, rule: int, level: Level) -> Iterator[bytes]:
        """The values of a rule, whole, that are not in an array yet."""
        listed = self._values_of(rule)
        index = 0
        while self._has(listed, index):
            identity, text = listed.values[index]
            index += 1
            if identity not in level.seen:
                yield text
        if not listed.is_all:
            yield from self._rule_values([rule])

    def longest(self, rule: int, count: int) -> float:
        """Bytes, with a comma, of the longest of so many values of a rule; infinite if they are not found."""
        listed = self._values_of(rule)
        if count and not self._has(listed, count - 1):
            return math.inf
        return max((len(text) + 1 for _, text in listed.values[:count]), default=0)

    def _values_of(self, rule: int) -> _Listed:
        with self._lock:
            listed = self._listed.get(rule)
            if listed is None:
                listed = self._listed[rule] = _Listed(self._walk(_before(rule), _is_whole))
            return listed

    def _has(self, listed: _Listed, index: int) -> bool:
        with self._lock:
            while index >= len(listed.values):
                if not listed.add():
                    return False
            return True

    def _names(self, part: Part, level: Level) -> Iterator[bytes]:
        assert part.key is not None
        if part.key.name is not None:
            yield _quoted(part.key.name) + b":"
            return
        for name in _words(part.key.language, level.seen.__contains__):
            yield _quoted(name) + b":"

    def _values(self, values: tuple[Value, ...]) -> Iterator[bytes]:
        yield from self._rule_values(list(dict.fromkeys(value.rule for value in values)))

    def _rule_values(self, numbers: list[int]) -> Iterator[bytes]:
        """Whole values without parts, and the brackets of others; by the size of the shortest."""
        rules = [self._tables.rules[number] for number in numbers]
        options: list[tuple[int, Iterator[bytes]]] = []
        for rule in rules:
            options += [(text.size, _spelled(text)) for text in rule.texts]
            options += [(len(m.shortest), _multiples(whole_multiples(m))) for m in rule.multiples]
            for start in rule.sequences:
                bracket = b"{" if start.is_object else b"["
                options.append((self._tables.places[start.place].size + 2, iter([bracket])))
        options.sort(key=lambda option: option[0])
        yield from _each(pieces for _, pieces in options)

    def _key_ends(self, point: Point) -> Iterator[bytes]:
        written = write(point.text).encode() + point.rest
        steps = (step for item in point.items for step in self._reader.steps(item.position))
        yield from _each(self._key_end(point, part.key, written) for part, _ in steps)

    def _key_end(self, point: Point, key: Key | None, written: bytes) -> Iterator[bytes]:
        if key is None:
            return
        if key.name is not None:
            whole = write(key.name).encode()
            if whole.startswith(written):
                yield whole[len(written) :] + b'":'
            return
        left = dict(point.names).get(key.language, NOTHING)
        for ending in _endings(left, point.rest, lambda word: point.text + word in point.level.seen):
            yield ending + b'":'

    def _text_ends(self, point: Point) -> Iterator[bytes]:
        if point.mode == Mode.QUOTED:
            yield from _each(_quoted_ends(language, point.rest) for language, _ in point.texts)
            return
        after = (b"}", b",") if point.level.is_object else (b"]", b",")
        words = _each(_bare_ends(language, point.text) for language, _ in point.texts)
        yield from (word + mark for word in words for mark in after)


class _Listed:
    """Values of one rule, found as they are asked for. Not thread-safe.

    Attributes:
        values: those so far, identity and text; no two are equal.
        is_all: there are no others.
    """

    def __init__(self, walk: Iterator[tuple[bytes, Point] | None]) -> None:
        self._walk: Iterator[tuple[bytes, Point] | None] | None = walk
        self._is_adding = False
        self._known: set[Identity] = set()
        self.values: list[tuple[Identity, bytes]] = []
        self.is_all = False

    def add(self) -> bool:
        """Find one more; False if there is none, or none is found within the limits."""
        if self._is_adding or self._walk is None or len(self.values) == _MOST_LISTED:
            return False
        self._is_adding = True  # a value of the rule may be part of others
        try:
            for found in islice(self._walk, MAX_STEPS):
                if found is None:
                    continue
                text, after = found
                (identity,) = after.level.seen
                if identity not in self._known:
                    self._known.add(identity)
                    # What shows that a number is whole is not part of it.
                    self.values.append((identity, text[:-1] if after.mode == Mode.COMMA else text))
                    return True
            self.is_all = next(self._walk, self) is self
        except TooManyStepsError:
            self._walk = None
        finally:
            self._is_adding = False
        return False


def _before(rule: int) -> Point:
    """Before the first item of an array of distinct values of a rule."""
    level = Level(Level(None, ()), (), distinct=True)
    return Point(Mode.VALUE, level, values=(Value(rule, Item(ROOT, 0)),))


def _is_whole(point: Point) -> bool:
    """Whether that item is whole."""
    level = point.level
    return level.distinct and level.parent is not None and level.parent.parent is None and bool(level.seen)


def _each(several: Iterable[Iterator[bytes]]) -> Iterator[bytes]:
    """The pieces of one after the other; that some are cut is told at the end."""
    cut = False
    for pieces in several:
        try:
            yield from pieces
        except _CutError:
            cut = True
    if cut:
        raise _CutError


def _quoted_ends(language: Language, rest: bytes) -> Iterator[bytes]:
    assert isinstance(language, Regex)
    yield from (ending + b'"' for ending in _endings(language, rest, lambda word: False))


def _bare_ends(language: Language, text: str) -> Iterator[bytes]:
    if isinstance(language, Regex):
        yield from (word.encode() for word in _words(language, lambda word: False))
        return
    yield from _multiples(completions(language, text))


def _multiples(texts: Iterator[str]) -> Iterator[bytes]:
    yield from (text.encode() for text in islice(texts, _MAX_WORDS))
    if next(texts, None) is not None:
        raise _CutError


def _endings(left: Regex, rest: bytes, taken: Callable[[str], bool]) -> Iterator[bytes]:
    if rest:
        ending = end_text(left, rest, taken)
        if ending is not None:
            yield ending[0]
        return
    yield from (write(word).encode() for word in _words(left, taken))


def _words(regex: Regex, taken: Callable[[str], bool]) -> Iterator[str]:
    """Texts of a language that are not taken, short ones first (_CutError: not all of them)."""
    few = _few_words(regex)
    if few is not None:
        yield from (word for word in few if not taken(word))
        return
    for _ in range(_MAX_WORDS):
        try:
            word = fresh_word(regex, taken)
        except TooManyStatesError:
            break
        if word is None:
            return
        yield word
        regex = intersect((regex, complement(literal(word))))
    raise _CutError


@lru_cache(maxsize=256)
def _few_words(regex: Regex) -> tuple[str, ...] | None:
    """All texts of a language, short ones first, if there are not too many to try each."""
    try:
        few = words(regex, MAX_STEPS) if count_texts(regex, MAX_STEPS) <= MAX_STEPS else None
    except TooManyStatesError:
        return None
    return None if few is None else tuple(sorted(few, key=len))


def _spelled(text: Text) -> Iterator[bytes]:
    """The shortest of its texts; behind what is not quoted, what comes next shows that it is whole."""
    for word in _words(text.regex, lambda word: False):
        yield _quoted(word) if text.quoted else word.encode()


def _quoted(text: str) -> bytes:
    return f'"{write(text)}"'.encode()
