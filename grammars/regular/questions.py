"""Questions about regular languages: their shortest text, all of their texts, whether they run out."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator
from functools import lru_cache

from grammars.regular.ast import Alt, And, Chars, Concat, Not, Range, Regex, Repeat
from grammars.regular.derivative import TooManyStatesError, classes, derive

__all__ = [
    "MAX_STATES",
    "TooManyStatesError",
    "count_texts",
    "has_all_beginnings",
    "has_more_than",
    "is_empty",
    "is_prolific",
    "pick",
    "shortest",
    "words",
]

MAX_STATES = 4000
MAX_WORK = 500_000
"""Nodes of the states that are gone on from, where each is larger than one would think."""
_MOST_CHARS = 1 << 20
_MAX_PROLIFIC_STATES = 200
_MAX_LISTED_LENGTH = 200
"""Longer texts are not listed, few or not."""
_STEPS, _STEPS_A_WORD = 2000, 4
"""What listing may take, in states."""


def pick(low: int, high: int) -> int:
    """The code point of a range that is shortest to write in JSON and plainest to read."""
    for preferred in (ord("a"), ord("0"), ord("A"), ord(" ")):
        if low <= preferred <= high:
            return preferred
    plain = [c for c in range(max(low, 0x20), min(high, 0x7E) + 1) if c not in (0x22, 0x5C)]
    return plain[0] if plain else max(low, min(high, 0x20))


@lru_cache(maxsize=4096)
def shortest(regex: Regex) -> str | None:
    """A shortest text of the language; None when there is none.

    Searches the automaton best first (A*); the expressions themselves say how far the end is at least.

    Raises:
        TooManyStatesError: not found within the limit on states, or of more characters than anybody wants.
    """
    if _MOST_CHARS < regex.floor < math.inf:
        raise TooManyStatesError
    order = itertools.count()
    heap: list[tuple[float, int, str, Regex | None]] = [(regex.floor, next(order), "", regex)]
    seen = {regex}
    work = 0
    while heap:
        bound, _, text, state = heapq.heappop(heap)
        if bound == math.inf:
            return None
        if state is None or state.nullable:
            return text
        if state.pure:
            word = text + _shortest_pure(state)
            heapq.heappush(heap, (len(word), next(order), word, None))
            continue
        work += state.size
        for ranges in classes(state):
            after = derive(state, ranges[0][0])
            if after not in seen:
                seen.add(after)
                bound = len(text) + 1 + after.floor
                heapq.heappush(heap, (bound, next(order), text + _plainest(ranges), after))
        if len(seen) > MAX_STATES or work > MAX_WORK:
            raise TooManyStatesError
    return None


def _shortest_pure(regex: Regex) -> str:
    """A shortest text of a language that is not empty, from its expression alone."""
    if regex.nullable:
        return ""
    match regex:
        case Chars(ranges=ranges):
            return _plainest(ranges)
        case Concat(parts=parts):
            return "".join(map(_shortest_pure, parts))
        case Alt(parts=parts):
            return min((_shortest_pure(part) for part in parts if part.floor < math.inf), key=_written)
        case Repeat(inner=inner, low=low):
            return _shortest_pure(inner) * low
    raise TypeError(regex)


def _plainest(ranges: tuple[Range, ...]) -> str:
    return min((chr(pick(low, high)) for low, high in ranges[:64]), key=_written)


def _written(text: str) -> tuple[int, int]:
    """Length as JSON text, roughly: characters, then bytes and escapes."""
    return len(text), len(text.encode()) + sum(c < " " or c in '"\\' for c in text)


def is_empty(regex: Regex) -> bool:
    """Whether no text belongs to the language (TooManyStatesError as for `shortest`)."""
    # Without complements the expression tells, and no text needs to be made.
    return regex.floor == math.inf if regex.pure else shortest(regex) is None


def words(regex: Regex, limit: int) -> list[str] | None:
    """All texts of the language, when there are at most `limit`; else, or where they are long, None.

    Raises:
        TooManyStatesError: not decided within the limit on states.
    """
    found: list[str] = []
    for word in _Listing(_STEPS + _STEPS_A_WORD * limit).below(regex, "", frozenset()):
        if word is None or len(found) == limit:
            return None
        found.append(word)
    return found


class _Listing:
    """Goes through the texts of a language in so many steps."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._work = MAX_WORK
        self._live: dict[Regex, bool] = {}

    def below(self, regex: Regex, text: str, path: frozenset[Regex]) -> Iterator[str | None]:
        """The words below a state; None once a loop, or how far it goes, shows that they are not few."""
        if len(self._live) > MAX_STATES:
            raise TooManyStatesError
        self._steps -= 1
        self._work -= regex.size
        if regex in path or self._steps < 0 or self._work < 0 or len(path) == _MAX_LISTED_LENGTH:
            yield None
            return
        if regex.nullable:
            yield text
        for ranges in classes(regex):
            after = derive(regex, ranges[0][0])
            if after not in self._live:
                self._live[after] = not is_empty(after)
            if self._live[after]:
                for code_point in itertools.chain.from_iterable(range(low, high + 1) for low, high in ranges):
                    yield from self.below(after, text + chr(code_point), path | {regex})


def has_more_than(regex: Regex, limit: int) -> bool:
    """Whether a language has more than `limit` texts (TooManyStatesError as for `count_texts`)."""
    return count_texts(regex, limit) > limit


def count_texts(regex: Regex, limit: int) -> int:
    """How many texts a language has; more than `limit` if there are more.

    Counts beginnings, length by length.

    Raises:
        TooManyStatesError: not decided within the limit on states.
    """
    ways = {regex: 1}
    live = {regex: not is_empty(regex)}
    found = size = work = 0
    while ways and live[regex]:
        found += sum(count for state, count in ways.items() if state.nullable)
        # What is longer than there are states has been through one twice, and may go there again. Every
        # beginning has an end.
        if found > limit or size >= len(live) or sum(ways.values()) > limit:
            return limit + 1
        work += sum(state.size for state in ways)
        ways = _longer(ways, live)
        if len(live) > MAX_STATES or work > MAX_WORK:
            raise TooManyStatesError
        size += 1
    return found


def _longer(ways: dict[Regex, int], live: dict[Regex, bool]) -> dict[Regex, int]:
    """From how many beginnings lead to each state, the same of those that are a character longer."""
    longer: dict[Regex, int] = {}
    for state, count in ways.items():
        for ranges in classes(state):
            after = derive(state, ranges[0][0])
            if after not in live:
                live[after] = not is_empty(after)
            if live[after]:
                chars = sum(high - low + 1 for low, high in ranges)
                longer[after] = longer.get(after, 0) + count * chars
    return longer


def has_all_beginnings(regex: Regex) -> bool:
    """Whether every beginning of a text of the language is one of its texts, the empty one too.

    Raises:
        TooManyStatesError: not decided within the limit on states.
    """
    seen = {regex}
    pending = [regex]
    work = 0
    while pending:
        state = pending.pop()
        work += state.size
        if not state.nullable:
            return False
        nexts = {derive(state, ranges[0][0]) for ranges in classes(state)} - seen
        live = [after for after in nexts if not is_empty(after)]
        seen.update(live)
        pending += live
        if len(seen) > MAX_STATES or work > MAX_WORK:
            raise TooManyStatesError
    return True


@lru_cache(maxsize=1024)
def is_prolific(regex: Regex) -> bool:
    """Whether every beginning of a text of the language can go on in infinitely many ways.

    False also where that is not found out within some states.
    """
    if _loops_at_end(regex):
        return True
    seen: set[Regex] = set()
    pending = [regex]
    work = 0
    while pending:
        state = pending.pop()
        if state in seen:
            continue
        if len(seen) == _MAX_PROLIFIC_STATES or work > MAX_WORK:
            return False
        seen.add(state)
        work += state.size
        nexts = {derive(state, ranges[0][0]) for ranges in classes(state)}
        live = [after for after in nexts if not is_empty(after)]
        if not live:
            return False
        # Where every beginning goes on, none comes to an end.
        pending.extend(live)
    return True


def _loops_at_end(regex: Regex) -> bool:
    """Whether a language is prolific, as far as its expression shows it."""
    match regex:
        case Repeat(high=high):
            return high is None
        case Concat(parts=parts):
            return bool(parts) and _loops_at_end(parts[-1])
        case Alt(parts=parts):
            return bool(parts) and all(map(_loops_at_end, parts))
        case And(parts=parts):
            # Texts taken out one by one do not make an end.
            rest = [part for part in parts if not (isinstance(part, Not) and _is_bounded(part.inner))]
            return not rest or (len(rest) == 1 and _loops_at_end(rest[0]))
        case Not(inner=inner):
            return _is_bounded(inner)
    return False


def _is_bounded(regex: Regex) -> bool:
    """Whether a language has finitely many texts, as far as its expression shows it."""
    match regex:
        case Chars():
            return True
        case Concat(parts=parts) | Alt(parts=parts):
            return all(map(_is_bounded, parts))
        case Repeat(inner=inner, high=high):
            return high is not None and _is_bounded(inner)
    return False
