"""A model's vocabulary as the grammar engine sees it: bytes, never strings."""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from llguidance import LLTokenizer, TokenizerWrapper

from grammars.token_table import TokenTable


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """What a token id stands for in output text.

    Attributes:
        token_bytes: id -> bytes; b"" for special, control and unused ids. Halves of characters and
            duplicate pieces are kept as they are.
        eos_ids: every id that ends a sequence; legal exactly when the text is complete.
        special_ids: ids that are never text, so never legal inside a constrained region.
        width: columns of the logits; at least len(token_bytes), the rest is never legal.
        encode: text -> ids without special tokens, as the model's own tokenizer splits it. Gives
            the canonical spelling of text that a grammar forces.
    """

    token_bytes: Sequence[bytes]
    eos_ids: frozenset[int]
    special_ids: frozenset[int]
    width: int
    encode: Callable[[str], list[int]]

    def __post_init__(self) -> None:
        if self.width < len(self.token_bytes):
            raise ValueError(
                f"width {self.width} is below the {len(self.token_bytes)} tokens of the vocabulary"
            )
        if not self.eos_ids:
            raise ValueError("a vocabulary needs an end-of-sequence id")

    @property
    def row_words(self) -> int:
        """int32 words of one mask row."""
        return -(-self.width // 32)

    @cached_property
    def spellings(self) -> Spellings:
        """The tokens that are text, by their bytes."""
        return Spellings(self.texts)

    @cached_property
    def table(self) -> TokenTable:
        """The same as arrays of bytes."""
        return TokenTable(self.texts)

    @property
    def texts(self) -> list[bytes]:
        """The bytes of each token, nothing for those that are no text."""
        barred = self.special_ids | self.eos_ids
        return [b"" if i in barred else text for i, text in enumerate(self.token_bytes)]

    @cached_property
    def plain(self) -> frozenset[bytes]:
        """The bytes of tokens that are whole characters and, in a JSON string, stand for themselves."""
        return frozenset(text for text in self.token_bytes if _plain_length(text))

    @cached_property
    def plain_lengths(self) -> bytes:
        """The characters of each token that is such text; 0 for all others."""
        lengths = [_plain_length(text) for text in self.texts]
        return bytes(length if length < 256 else 0 for length in lengths).ljust(self.width, b"\0")

    @cached_property
    def tokenizer(self) -> LLTokenizer:
        """The engine's own tokenizer object; built once (about 0.1 s for 50,000 tokens)."""
        return LLTokenizer(TokenizerWrapper(_Pieces(self)), eos_token=sorted(self.eos_ids))


class Spellings:
    """Token ids by the bytes they stand for.

    Attributes:
        two_quotes, three_quotes: tokens with at least so many quotation marks.
        ends_bare: tokens with a character of a number or name, and behind it one that ends such a thing.
        escaped_quote: tokens with a backslash and a quotation mark.
        brackets: tokens with a closing bracket; quote_and_bracket: with a quotation mark before it.
        goes_on: tokens with the end of an element or nothing, and behind it a comma and the next one.
        two_elements: tokens with the colon or bracket before an element, that, and some of the next one.
        begins_string: tokens that begin with a quotation mark, and have no other.
    """

    def __init__(self, token_bytes: Sequence[bytes]) -> None:
        ordered = sorted((text, token_id) for token_id, text in enumerate(token_bytes) if text)
        self._token_bytes = token_bytes
        self._texts = [text for text, _ in ordered]
        self._by_text = dict(ordered)
        self._longest = max(map(len, self._texts))
        self._ids = np.array([token_id for _, token_id in ordered], np.int64)
        self.two_quotes = self._where(lambda text: text.count(b'"') >= 2)
        self.three_quotes = self._where(lambda text: text.count(b'"') >= 3)
        self.ends_bare = self._where(lambda text: _BARE_END.search(text) is not None)
        self.brackets = self._where(lambda text: b"]" in text or b"}" in text)
        self.quote_and_bracket = self._where(lambda text: _QUOTE_BRACKET.search(text) is not None)
        self.escaped_quote = self._where(lambda text: b'"' in text and b"\\" in text)
        self.goes_on = self._where(lambda text: _GOES_ON.search(text) is not None)
        self.two_elements = self._where(lambda text: _TWO_ELEMENTS.search(text) is not None)
        begins_string = self._where(lambda text: text.startswith(b'"') and text.count(b'"') == 1)
        self.begins_string = frozenset(begins_string.tolist())

    def _where(self, has: Callable[[bytes], bool]) -> npt.NDArray[np.int64]:
        chosen = [i for i, text in enumerate(self._texts) if has(text)]
        return self._ids[chosen]

    def longest(self, data: bytes) -> int | None:
        """The longest token that `data` starts with; None if there is none."""
        for size in range(min(self._longest, len(data)), 0, -1):
            token_id = self._by_text.get(data[:size])
            if token_id is not None:
                return token_id
        return None

    def fewest(self, data: bytes) -> list[int] | None:
        """The fewest tokens that make `data`; None if none do.

        Of long data, only the last part is made of the fewest, what is before it of the longest there are.
        """
        tokens = []
        while len(data) > _MOST_SPLIT:
            token_id = self.longest(data)
            if token_id is None:
                return None
            tokens.append(token_id)
            data = data[len(self._token_bytes[token_id]) :]
        firsts = self._fewest_from(data)
        at = 0
        while at < len(data):
            if firsts[at] < 0:
                return None
            tokens.append(firsts[at])
            at += len(self._token_bytes[firsts[at]])
        return tokens

    def _fewest_from(self, data: bytes) -> list[int]:
        """For each place in `data` the first of the fewest tokens that what follows is made of; -1: none."""
        firsts = [-1] * len(data)
        counts = [*[math.inf] * len(data), 0]
        for start in reversed(range(len(data))):
            for end in range(start + 1, min(start + self._longest, len(data)) + 1):
                if counts[end] + 1 < counts[start]:
                    token_id = self._by_text.get(data[start:end])
                    if token_id is not None:
                        counts[start], firsts[start] = counts[end] + 1, token_id
        return firsts

    def starting_with(self, prefix: bytes) -> npt.NDArray[np.int64]:
        """The tokens whose bytes start with `prefix`."""
        start = bisect_left(self._texts, prefix)
        end = bisect_left(self._texts, prefix + b"\xff" * 256, start)
        return self._ids[start:end]


def _plain_length(data: bytes) -> int:
    """Characters of a text that stands for itself in a JSON string; 0 of what is none."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return 0
    return 0 if _NOT_PLAIN.search(text) else len(text)


_MOST_SPLIT = 512
"""Bytes, at the end of long data, of which the fewest tokens are sought."""
_NOT_PLAIN = re.compile(r'["\\\x00-\x1f]')
_QUOTE_BRACKET = re.compile(rb'".*[\]}]', re.DOTALL)
_BARE_END = re.compile(rb"[0-9a-z][,\]} \n]")
_GOES_ON = re.compile(rb'(^|["0-9a-z\]}])\s*,\s*[^\s,]')
_TWO_ELEMENTS = re.compile(rb'("\s*:|\[).*["0-9a-z\]}]\s*,\s*[^\s,]', re.DOTALL)


class _Pieces:
    """The attributes that llguidance reads from a Python tokenizer."""

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        texts = vocabulary.texts
        self.tokens = texts + [b""] * (vocabulary.width - len(texts))
        self.special_token_ids = sorted(vocabulary.special_ids | vocabulary.eos_ids)
        self.eos_token_id = min(vocabulary.eos_ids)
        self._encode = vocabulary.encode

    def __call__(self, text: str) -> list[int]:
        return self._encode(text)
