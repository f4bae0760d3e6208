"""Lists of texts as expressions in which those that begin alike share that beginning.

A derivative of a flat list goes through all of it, one of these only through the beginnings that differ.
"""

from __future__ import annotations

from collections.abc import Iterable

from grammars.regular.ast import Regex, alt, concat, literal

_LEVELS = 16
"""Of beginnings within beginnings, as expressions are walked recursively; below them lists are flat."""


def one_of(texts: Iterable[str]) -> Regex:
    """Exactly one of these texts."""
    return _after(0, list(dict.fromkeys(texts)), _LEVELS)


def _after(start: int, texts: list[str], levels: int) -> Regex:
    """What different texts that are alike up to `start` have behind it."""
    if not levels or len(texts) == 1:
        return alt(literal(text[start:]) for text in texts)
    groups: dict[str, list[str]] = {}
    for text in texts:
        groups.setdefault(text[start : start + 1], []).append(text)
    return alt(_alike(start, group, levels) for group in groups.values())


def _alike(start: int, texts: list[str], levels: int) -> Regex:
    """The same of texts that share their next character, or the one that ends."""
    first, last = min(texts), max(texts)
    end = next((n for n in range(start, len(first)) if first[n] != last[n]), len(first))
    return concat([literal(texts[0][start:end]), _after(end, texts, levels - 1)])
