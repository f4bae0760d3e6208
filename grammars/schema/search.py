"""Searching for an end of a value that repeats nothing, where the shortest one would."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

from grammars.regular.ast import NOTHING, Regex, complement, intersect, literal
from grammars.regular.questions import TooManyStatesError
from grammars.schema.endings import end_text, fresh_word
from grammars.schema.partial import write
from grammars.schema.points import Language, Level, Mode, OffGrammarError, Point, RepeatedError, Value
from grammars.schema.reader import Reader
from grammars.schema.shapes import Key, Text
from grammars.schema.steps_left import completions, whole_multiples
from grammars.schema.tables import Part

MAX_STEPS = 500
_MAX_WORDS = 64
"""So many texts of one place are tried."""

Stop = Callable[[Point], bool]


class TooManyStepsError(Exception):
    """No end was found within the limit, though there may be one."""


class Search:
    """Looks for ends, short ones first, piece by piece and depth first. Stateless; safe to share."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._tables = reader.tables

    def find(self, point: Point, stop: Stop) -> bytes | None:
        """Bytes that lead to a point at which `stop` is true, without a repetition; None if none do.

        Raises:
            TooManyStepsError: not found out within the limit.
        """
        steps = 0
        texts = [b""]
        stack = [(point, self._pieces(point))]
        while stack:
            here, pieces = stack[-1]
            if stop(here):
                return b"".join(texts)
            piece = next(pieces, None)
            if piece is None:
                stack.pop()
                texts.pop()
                continue
            steps += 1
            if steps > MAX_STEPS:
                raise TooManyStepsError
            try:
                after = self._reader.advance(here, piece)
            except (RepeatedError, OffGrammarError):
                continue
            stack.append((after, self._pieces(after)))
            texts.append(piece)
        return None

    def _pieces(self, point: Point) -> Iterator[bytes]:
        """What may come next, each as one piece."""
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
            for part, _ in steps:
                yield from self._names(part, point.level)
        else:
            rules = dict.fromkeys(part.rule for part, _ in steps)
            yield from self._rule_values(list(rules))

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
        for _, pieces in options:
            yield from pieces

    def _key_ends(self, point: Point) -> Iterator[bytes]:
        written = write(point.text).encode() + point.rest
        for item in point.items:
            for part, _ in self._reader.steps(item.position):
                yield from self._key_end(point, part.key, written)

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
            for language, _ in point.texts:
                assert isinstance(language, Regex)
                yield from (ending + b'"' for ending in _endings(language, point.rest, lambda word: False))
            return
        after = (b"}", b",") if point.level.is_object else (b"]", b",")
        for language, _ in point.texts:
            for word in _bare_ends(language, point.text):
                yield from (word + mark for mark in after)


def _bare_ends(language: Language, text: str) -> Iterator[bytes]:
    if isinstance(language, Regex):
        yield from (word.encode() for word in _words(language, lambda word: False))
        return
    yield from _multiples(completions(language, text))


def _multiples(texts: Iterator[str]) -> Iterator[bytes]:
    return (text.encode() for text in islice(texts, _MAX_WORDS))


def _endings(left: Regex, rest: bytes, taken: Callable[[str], bool]) -> Iterator[bytes]:
    if rest:
        ending = end_text(left, rest, taken)
        if ending is not None:
            yield ending[0]
        return
    yield from (write(word).encode() for word in _words(left, taken))


def _words(regex: Regex, taken: Callable[[str], bool]) -> Iterator[str]:
    """Texts of a language that are not taken, short ones first; not more than a limit."""
    for _ in range(_MAX_WORDS):
        try:
            word = fresh_word(regex, taken)
        except TooManyStatesError:
            return
        if word is None:
            return
        yield word
        regex = intersect((regex, complement(literal(word))))


def _spelled(text: Text) -> Iterator[bytes]:
    """The shortest of its texts; behind what is not quoted, what comes next shows that it is whole."""
    for word in _words(text.regex, lambda word: False):
        yield _quoted(word) if text.quoted else word.encode()


def _quoted(text: str) -> bytes:
    return f'"{write(text)}"'.encode()
