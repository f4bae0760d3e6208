"""Keeping what clients write from being read as special tokens.

Before a chat template runs, every piece of client text that is a special token's, or could become one
beside other text, is replaced by a mark; afterwards the marks show which parts of the prompt must be
encoded without parsing special tokens. (A template that wraps client text itself, as in
`'<|' ~ role ~ '|>'`, means to make a special token of it.)
"""

from __future__ import annotations

import re
import secrets
from typing import Any

from engine.tokenizer import Tokenizer


class SpecialTexts:
    """The texts of a tokenizer's special tokens, ready to be searched for."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        texts = sorted(tokenizer.special_tokens, key=len, reverse=True)
        self.pattern = re.compile("|".join(map(re.escape, texts)) or "(?!)")
        self._beginnings = {text[:end] for text in texts for end in range(1, len(text))}
        self._endings = {text[start:] for text in texts for start in range(1, len(text))}
        self._longest = max(map(len, texts), default=0)

    def beginning_at_end(self, text: str) -> int:
        """Length of the longest suffix of `text` that begins a special token's text."""
        lengths = range(min(self._longest, len(text)), 0, -1)
        return next((n for n in lengths if text[len(text) - n :] in self._beginnings), 0)

    def ending_at_start(self, text: str) -> int:
        """Length of the longest prefix of `text` that ends a special token's text."""
        lengths = range(min(self._longest, len(text)), 0, -1)
        return next((n for n in lengths if text[:n] in self._endings), 0)


class Quotes:
    """The marks of one prompt. They are digits behind a number nobody can guess, so text cannot forge
    them, and templates that trim, change case or write JSON leave them alone.
    """

    def __init__(self, special: SpecialTexts) -> None:
        self._special = special
        self._nonce = secrets.randbits(64)
        self._quoted: list[str] = []
        self._mark = re.compile(rf"~{self._nonce}:(\d+)~")

    def quote(self, value: Any) -> Any:
        """A copy of JSON-like data with special text in all strings, keys too, replaced by marks.

        A role that is a plain word stays as it is: templates compare it and build headers from it.
        """
        match value:
            case str():
                return self._quote_text(value)
            case list() | tuple():
                return [self.quote(item) for item in value]
            case dict():
                return {
                    self.quote(key): item if _is_role(key, item) else self.quote(item)
                    for key, item in value.items()
                }
            case _:
                return value

    def unquote(self, text: str) -> str:
        """Put back what the marks stand for."""
        return self._mark.sub(lambda match: self._quoted[int(match[1])], text)

    def mark(self, text: str) -> str:
        """A new mark that stands for `text`."""
        self._quoted.append(text)
        return f"~{self._nonce}:{len(self._quoted) - 1}~"

    def _quote_text(self, text: str) -> str:
        end = len(text) - self._special.beginning_at_end(text)
        start = self._special.ending_at_start(text[:end])
        middle = self._special.pattern.sub(lambda match: self.mark(match[0]), text[start:end])
        before = self.mark(text[:start]) if start else ""
        after = self.mark(text[end:]) if end < len(text) else ""
        return before + middle + after

    def encode(self, text: str, tokenizer: Tokenizer) -> list[int]:
        """The ids of a rendered prompt; only special tokens that the template wrote are parsed.

        The tokenizer itself cuts a text at its special tokens, so encoding what lies between two of them
        apart, where a mark is in it, gives what encoding all at once would.
        """
        ids: list[int] = []
        unmarked = ""
        for part in _split_at(tokenizer.special_pattern, text):
            if self._mark.search(part) is None:
                unmarked += part
                continue
            ids += _encode_unmarked(unmarked, tokenizer)
            ids += tokenizer.encode(self.unquote(part), add_special=False, parse_special=False)
            unmarked = ""
        return ids + _encode_unmarked(unmarked, tokenizer)


def _encode_unmarked(text: str, tokenizer: Tokenizer) -> list[int]:
    """The ids of text in which special tokens are what has their very text.

    Some tokenizers look for special tokens in normalised text, where other text may have become theirs.
    """
    ids = tokenizer.encode(text, add_special=False, parse_special=True)
    parts = _split_at(tokenizer.special_pattern, text)
    # Every other part is a match.
    written = [tokenizer.special_tokens.get(part.strip()) for part in parts[1::2]]
    if [token_id for token_id in ids if token_id in tokenizer.special_ids] == written:
        return ids
    return [
        token_id
        for number, part in enumerate(parts)
        for token_id in tokenizer.encode(part, add_special=False, parse_special=number % 2 == 1)
    ]


def _is_role(key: str, value: Any) -> bool:
    return key == "role" and isinstance(value, str) and re.fullmatch(r"[A-Za-z_-]+", value) is not None


def _split_at(pattern: re.Pattern[str], text: str) -> list[str]:
    """`text` in order: what lies between matches, and the matches themselves."""
    parts, start = [], 0
    for match in pattern.finditer(text):
        parts += [text[start : match.start()], match[0]]
        start = match.end()
    return [*parts, text[start:]]
