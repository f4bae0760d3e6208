"""From rules to the text of a grammar in llguidance's Lark dialect."""

from __future__ import annotations

import json
from collections import deque
from fractions import Fraction

from grammars.base import GrammarError
from grammars.regular.ast import Regex, chars, intersect, is_free, repeat
from grammars.regular.lark import JSON, JSON_FREE, PLAIN, quote
from grammars.regular.pattern_syntax import PatternError
from grammars.regular.patterns import full_language
from grammars.regular.questions import TooManyStatesError, has_all_beginnings
from grammars.schema.partial import write
from grammars.schema.shapes import Element, Key, Multiples, Rule, Sequence, State, Tail
from grammars.spec import JsonOptions

_GAP = r"/(?: |\n {0,32})?/"
_BLANKS = repeat(chars([(ord(blank), ord(blank)) for blank in "\t\n\r "]), 0, 32)


def emit(root: Rule, options: JsonOptions) -> str:
    """The grammar whose sentences are the values of `root`."""
    emitter = Emitter(options)
    start = emitter.add(root)
    return "\n".join(["%llguidance {}", f"start: {start}", *emitter.lines(), ""])


class Emitter:
    """Writes the rules of one or more schemas, as parts of one grammar."""

    def __init__(self, options: JsonOptions) -> None:
        gap = _gap(options)
        self._gap = gap
        self._comma = f"/,/{gap}"
        self._brackets = {
            True: (f"/\\{{/{gap}", f"{gap} /\\}}/", '"{" "}"'),
            False: (f"/\\[/{gap}", f"{gap} /\\]/", '"[" "]"'),
        }
        self._lines: list[str] = []
        self._terminals: dict[str, str] = {}
        self._texts: dict[tuple[Regex, bool], str] = {}
        self._rules: dict[int, str] = {}
        self._states: dict[int, str] = {}
        self._pending: deque[Rule] = deque()

    def add(self, root: Rule) -> str:
        """Write the rules below `root`; gives the name of its own."""
        name = self._rule(root)
        while self._pending:
            rule = self._pending.popleft()
            self._lines.append(f"{self._rule(rule)}: {' | '.join(self._alternatives(rule))}")
        return name

    def terminal(self, text: str) -> str:
        """The name of a terminal, by its definition."""
        return self._terminals.setdefault(text, f"T{len(self._terminals)}")

    def lines(self) -> list[str]:
        """All rules and terminals."""
        return [*self._lines, *(f"{name}: {text}" for text, name in self._terminals.items())]

    def _rule(self, rule: Rule) -> str:
        name = self._rules.get(id(rule))
        if name is None:
            name = self._rules[id(rule)] = f"r{len(self._rules)}"
            self._pending.append(rule)
        return name

    def _alternatives(self, rule: Rule) -> list[str]:
        options = [self._text(text.regex, quoted=text.quoted) for text in rule.texts]
        options += [_multiples(multiples) for multiples in rule.multiples]
        options += [self._sequence(sequence) for sequence in rule.sequences]
        return options

    def _text(self, regex: Regex, *, quoted: bool) -> str:
        known = self._texts.get((regex, quoted))
        if known is None:
            known = self._texts[regex, quoted] = self.terminal(_text(regex, quoted=quoted))
        return known

    def _sequence(self, sequence: Sequence) -> str:
        opening, closing, empty = self._brackets[sequence.is_object]
        for state in sequence.states:
            self._states[id(state)] = f"s{len(self._states)}"
        for state in sequence.states:
            options = self._state(state)
            # A sequence without elements has one bracket pair, with no gaps; it must not be derived twice.
            self._lines.append(f"{self._states[id(state)]}: {' | '.join(options)}")
        name = f"q{len(self._lines)}"
        body = f"{self.terminal(opening)} {self._states[id(sequence.start)]} {self.terminal(closing)}"
        options = [body]
        if self._gap and sequence.start.size == 0:
            options.append(empty)
        self._lines.append(f"{name}: {' | '.join(options)}")
        return name

    def _state(self, state: State) -> list[str]:
        options = ['""'] if state.final else []
        for element, after in state.edges:
            options.append(f"{self._separated(state.first, element)} {self._states[id(after)]}")
        if state.skip is not None:
            options.append(self._states[id(state.skip)])
        if state.tail is not None:
            options += self._tail(state.tail, first=state.first)
        if state.loop:
            loop = " | ".join(self._separated(False, element) for element in state.loop)
            options = [f"({loop})* ({' | '.join(options)})"]
        return options

    def _separated(self, first: bool, element: Element) -> str:
        text = self._element(element)
        return text if first else f"{self.terminal(self._comma)} {text}"

    def _element(self, element: Element) -> str:
        value = self._rule(element.value)
        return value if element.key is None else f"{self.terminal(self._key(element.key))} {value}"

    def _key(self, key: Key) -> str:
        if key.regex is None:
            return f'/"{quote(write(key.name or ""))}":/{self._gap}'
        return f'"\\"" ({JSON.terminal(key.regex)}) /":/{self._gap}'

    def _tail(self, tail: Tail, *, first: bool) -> list[str]:
        if tail.unique:
            return self._unique(tail)
        one = " | ".join(self._element(element) for element in tail.elements)
        comma = self.terminal(self._comma)
        if not first:
            return [f"({comma} ({one})){_times(tail.low, tail.high)}"]
        options = ['""'] if tail.low == 0 else []
        high = None if tail.high is None else tail.high - 1
        more = "" if high == 0 else f" ({comma} ({one})){_times(max(0, tail.low - 1), high)}"
        return [*options, f"({one}){more}"]

    def _unique(self, tail: Tail) -> list[str]:
        """Bits of a parameter say which elements were there (llguidance's parametric rules)."""
        name = f"u{len(self._lines)}"
        size = len(tail.elements)
        high = size if tail.high is None else min(tail.high, size)
        options = [f'"" %if bit_count_ge([0:{size}], {tail.low})']
        for bit, element in enumerate(tail.elements):
            item = f"{self.terminal(self._comma)} {self._element(element)} {name}::set_bit({bit})"
            options.append(f"{item} %if and(bit_clear({bit}), bit_count_lt([0:{size}], {high}))")
        self._lines.append(f"{name}::_: " + "\n    | ".join(options))
        starts = [f"{self._element(e)} {name}::{1 << bit:#x}" for bit, e in enumerate(tail.elements)]
        return (['""'] if tail.low == 0 else []) + starts


def _gap(options: JsonOptions) -> str:
    """What may stand between tokens, as a part of a terminal.

    Raises:
        GrammarError: not what the pattern asks for.
    """
    if options.whitespace == "compact":
        return ""
    if not options.whitespace_pattern:
        return f" {_GAP}"
    try:
        language = intersect((full_language(options.whitespace_pattern), _BLANKS))
        any_beginning = has_all_beginnings(language)
    except PatternError as error:
        raise GrammarError(f"whitespace_pattern: {error}") from error
    except TooManyStatesError:
        raise GrammarError("grammar too complex: whitespace_pattern leads to too many states") from None
    if not any_beginning:
        # Else an answer could not be led to its end from between two blanks.
        raise GrammarError(
            "whitespace_pattern must allow every beginning of what it allows, and nothing at all"
        )
    return f" ({PLAIN.terminal(language)})"


def _times(low: int, high: int | None) -> str:
    if high is None:
        return "*" if low == 0 else f"{{{low},}}"
    return f"{{{low},{high}}}"


def _text(regex: Regex, *, quoted: bool) -> str:
    if not quoted:
        return PLAIN.terminal(regex)
    # Where nothing but the length counts, every escape may be written.
    writer = JSON_FREE if is_free(regex) else JSON
    if regex.pure:
        return f'/"{writer.pattern(regex)}"/'
    return f'"\\"" ({writer.terminal(regex)}) "\\""'


def _multiples(multiples: Multiples) -> str:
    numbers = multiples.numbers
    schema: dict[str, object] = {
        "type": "integer" if numbers.whole else "number",
        "multipleOf": _json_number(multiples.step),
        "x-guidance": {"whitespace_flexible": False},
    }
    for bound, is_open, keyword in (
        (numbers.low, numbers.low_open, "inimum"),
        (numbers.high, numbers.high_open, "aximum"),
    ):
        side = "m" + keyword
        name = f"exclusive{side.capitalize()}" if is_open else side
        if bound is not None:
            schema[name] = _json_number(bound)
    return f"%json {json.dumps(schema)}"


def _json_number(value: Fraction) -> int | float:
    return value.numerator if value.denominator == 1 else float(value)
