"""The tokens of a vocabulary as arrays of bytes: which of them lead where, many at a time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from grammars.regular.ast import Alt, And, Chars, Concat, Not, Regex, Repeat

Ids = npt.NDArray[np.int64]

_MOST_NODES = 512
_MOST_KEPT = 16
_WORK_A_GROUP = 25
_TOKENS_A_UNIT = 50
_FACTOR = np.uint64(0x9E3779B97F4A7C15)


class TokenTable:
    """Tokens by the bytes they stand for.

    Attributes:
        lengths: bytes of each token; 0 for those that are no text.
        simple: whether a token has nothing but printable ASCII without backslashes.
        ordinary: whether it has no quotation mark either: in a JSON string, each of its bytes is a character
            that stands for itself.
    """

    def __init__(self, texts: Sequence[bytes]) -> None:
        self.lengths = np.array([len(text) for text in texts], np.int64)
        self._offsets = np.cumsum(self.lengths) - self.lengths
        self._bytes = np.frombuffer(b"".join(texts), np.uint8)
        odd = (self._bytes < 0x20) | (self._bytes > 0x7E) | (self._bytes == ord("\\"))
        self.simple = self._without(odd)
        self.ordinary = self.simple & self._without(self._bytes == ord('"'))
        # The ordinary ones, one behind the other.
        self._ids = np.flatnonzero(self.ordinary)
        lengths = self.lengths[self._ids]
        self._starts = np.cumsum(lengths) - lengths
        places = np.arange(int(lengths.sum())) - np.repeat(self._starts, lengths)
        self._text = self._bytes[np.repeat(self._offsets[self._ids], lengths) + places]
        powers = np.cumprod(np.full(int(lengths.max(initial=1)), _FACTOR), dtype=np.uint64)
        self._weights = powers[places]
        self._unlike: OrderedDict[bytes, npt.NDArray[np.bool_]] = OrderedDict()

    def _without(self, odd: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Of each token, whether it is text and has no byte that is odd."""
        odds = np.concatenate(([0], np.cumsum(odd)))
        counts: npt.NDArray[np.int64] = odds[self._offsets + self.lengths] - odds[self._offsets]
        found: npt.NDArray[np.bool_] = (self.lengths > 0) & (counts == 0)
        return found

    def longest_ordinary(self, most: int) -> int | None:
        """The longest of the ordinary tokens that have at most so many characters."""
        lengths = np.where(self.lengths[self._ids] > most, 0, self.lengths[self._ids])
        return int(self._ids[np.argmax(lengths)]) if lengths.any() else None

    def groups(
        self, place: int, ids: Ids, step: Callable[[int, int], int], spend: Callable[[int], None]
    ) -> dict[int, Ids]:
        """The tokens that lead to each place from one, a byte at a time.

        Args:
            step: the place after a byte; negative: there is none.
            spend: is told of work, in about microseconds.
        """
        found: dict[int, list[Ids]] = {}
        level: dict[int, list[Ids]] = {place: [ids]}
        depth = 0
        while level:
            following: dict[int, list[Ids]] = {}
            for here, parts in level.items():
                there = np.concatenate(parts) if len(parts) > 1 else parts[0]
                whole = self.lengths[there] == depth
                if whole.any():
                    found.setdefault(here, []).append(there[whole])
                    there = there[~whole]
                for target, going in self._after(here, there, depth, step):
                    following.setdefault(target, []).append(going)
                spend(_WORK_A_GROUP + len(there) // _TOKENS_A_UNIT)
            level = following
            depth += 1
        return {target: np.concatenate(parts) for target, parts in found.items()}

    def _after(
        self, place: int, ids: Ids, depth: int, step: Callable[[int, int], int]
    ) -> Iterator[tuple[int, Ids]]:
        """The places after the next byte of tokens, and the tokens that lead to each."""
        data = self._bytes[self._offsets[ids] + depth]
        present = np.zeros(256, np.bool_)
        present[data] = True
        targets = np.full(256, -1, np.int64)
        for byte in np.flatnonzero(present).tolist():
            targets[byte] = step(place, byte)
        leads = targets[data]
        for target in set(targets.tolist()):
            if target >= 0:
                yield target, ids[leads == target]

    def unlike(self, classes: bytes) -> npt.NDArray[np.bool_]:
        """The tokens of which it is enough to look at, in texts of some languages.

        That is one of those ordinary ones that no language tells apart, and all others.

        Args:
            classes: as `told_apart` gives them.
        """
        known = self._unlike.get(classes)
        if known is None:
            known = self._unlike[classes] = self._find_unlike(np.frombuffer(classes, np.uint8))
        self._unlike.move_to_end(classes)
        if len(self._unlike) > _MOST_KEPT:
            self._unlike.popitem(last=False)
        return known

    def _find_unlike(self, classes: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
        chosen = ~self.ordinary
        if not len(self._ids):
            return chosen
        told = classes[self._text]
        # A hash of the classes of a token's bytes; where two of 64 bits met, a token would be overlooked.
        sums = np.add.reduceat((told.astype(np.uint64) + np.uint64(1)) * self._weights, self._starts)
        possible = np.minimum.reduceat(told, self._starts) > 0
        _, first = np.unique(sums[possible], return_index=True)
        chosen[self._ids[possible][first]] = True
        return chosen


@lru_cache(maxsize=1024)
def told_apart(languages: tuple[Regex, ...]) -> bytes | None:
    """A number for each byte, the same for characters that no language tells apart; 0: in none of them.

    None if the languages are too large to say.
    """
    sets: dict[Chars, None] = {}
    pending = list(languages)
    nodes = 0
    others = False
    while pending:
        nodes += 1
        if nodes > _MOST_NODES:
            return None
        match pending.pop():
            case Chars() as chars:
                sets[chars] = None
            case Concat(parts=parts) | Alt(parts=parts) | And(parts=parts):
                pending.extend(parts)
            case Repeat(inner=inner):
                pending.append(inner)
            case Not(inner=inner):
                others = True
                pending.append(inner)
    member = [0] * 256
    for number, chars in enumerate(sets):
        for low, high in chars.ranges:
            for code in range(low, min(high, 0x7F) + 1):
                member[code] |= 1 << number
    numbers: dict[int, int] = {} if others else {0: 0}
    found = [numbers.setdefault(who, len(numbers) + others) for who in member]
    return bytes(found) if max(found) < 256 else None


def is_ordinary(byte: int) -> bool:
    """Whether a byte is a character that, in a JSON string, stands for itself."""
    return 0x20 <= byte <= 0x7E and byte not in b'"\\'
