"""From regular expressions to languages: of JSON Schema's `pattern`, and of whole texts.

Lookaheads and `$` restrict what follows, up to the end of the text; so each construct is translated
together with the language that may follow it (continuation passing).
"""

from __future__ import annotations

from grammars.regular.ast import (
    ANY_CHAR,
    ANYTHING,
    EMPTY,
    NOTHING,
    Chars,
    Regex,
    alt,
    complement,
    concat,
    intersect,
    repeat,
)
from grammars.regular.classes import ECMA, Dialect
from grammars.regular.growth import grows
from grammars.regular.pattern_syntax import Ahead, Choice, Edge, PatternError, Seq, Times, Tree, parse
from grammars.regular.texts import one_of


def search_language(pattern: str) -> Regex:
    """Every text in which `pattern` is found.

    Raises:
        PatternError: see there.
    """
    tree = parse(pattern, ECMA)
    anchored = _follow(tree, ANYTHING, at_start=True)
    floating = _follow(tree, ANYTHING, at_start=False)
    if floating == NOTHING:
        return _not_growing(anchored)
    if anchored == floating:
        return _not_growing(concat((ANYTHING, floating)))
    return _not_growing(alt((anchored, concat((ANY_CHAR, ANYTHING, floating)))))


def full_language(pattern: str, dialect: Dialect = ECMA) -> Regex:
    """Every text that `pattern` matches from its start to its end.

    Raises:
        PatternError: see there.
    """
    return _not_growing(_follow(parse(pattern, dialect), EMPTY, at_start=True))


def _not_growing(language: Regex) -> Regex:
    if grows(language):
        raise PatternError("what may come next gets too large: it counts repetitions that are ambiguous")
    return language


def _follow(tree: Tree, after: Regex, *, at_start: bool) -> Regex:
    """The language of `tree` followed by `after`; `at_start`: nothing stands before it."""
    match tree:
        case Seq(parts=parts):
            return _follow_all(parts, after, at_start=at_start)
        case Choice(options=options):
            texts = [_text(option) for option in options]
            others = [option for option, text in zip(options, texts, strict=True) if text is None]
            plain = one_of(text for text in texts if text is not None)
            return alt(
                (concat((plain, after)), *(_follow(option, after, at_start=at_start) for option in others))
            )
        case Times():
            return _follow_times(tree, after, at_start=at_start)
        case Ahead(inner=inner, negative=negative):
            seen = _follow(inner, ANYTHING, at_start=at_start)
            return intersect((complement(seen) if negative else seen, after))
        case Edge():
            there = after if at_start else NOTHING
            return there if tree.at_start else intersect((EMPTY, after))
    return concat((tree, after))


def _text(tree: Tree) -> str | None:
    """The only text of a tree, as far as it shows it."""
    parts = tree.parts if isinstance(tree, Seq) else (tree,)
    chars = [part.ranges for part in parts if isinstance(part, Chars)]
    if len(chars) < len(parts) or any(len(ranges) > 1 or ranges[0][0] < ranges[0][1] for ranges in chars):
        return None
    return "".join(chr(ranges[0][0]) for ranges in chars)


def _follow_all(parts: tuple[Tree, ...], after: Regex, *, at_start: bool) -> Regex:
    for index in range(len(parts) - 1, -1, -1):
        lead = at_start and all(_is_empty_match(part) for part in parts[:index])
        if at_start and not lead and _has_start(parts[index]) and _may_be_empty(parts[:index]):
            raise PatternError("^ after something that may be empty is not supported")
        after = _follow(parts[index], after, at_start=lead)
    return after


def _follow_times(tree: Times, after: Regex, *, at_start: bool) -> Regex:
    if not _asserts(tree.inner):
        inner = _follow(tree.inner, EMPTY, at_start=False)
        return concat((repeat(inner, tree.low, tree.high), after))
    if (tree.low, tree.high) == (0, 1):
        return alt((after, _follow(tree.inner, after, at_start=at_start)))
    if after == ANYTHING and tree.low == 0:
        return ANYTHING
    every = _each_char(tree) if after == EMPTY else None
    if every is None:
        raise PatternError("an assertion inside a repetition is not supported")
    return every


def _each_char(tree: Times) -> Regex | None:
    """`(?:(?!inner)c)*` at the end of a text: characters of which none starts what `inner` matches."""
    parts = tree.inner.parts if isinstance(tree.inner, Seq) else (tree.inner,)
    *aheads, last = parts
    if not isinstance(last, Chars):
        return None
    bad = []
    for ahead in aheads:
        if not isinstance(ahead, Ahead) or _has_start(ahead):
            return None
        seen = _follow(ahead.inner, ANYTHING, at_start=False)
        bad.append(seen if ahead.negative else complement(seen))
    # Every place at which there is a character left.
    somewhere = concat((ANYTHING, intersect((alt(bad), concat((ANY_CHAR, ANYTHING))))))
    return intersect((repeat(last, tree.low, tree.high), complement(somewhere)))


def _is_empty_match(tree: Tree) -> bool:
    """Whether a tree only asserts, and consumes nothing."""
    match tree:
        case Edge() | Ahead():
            return True
        case Seq(parts=parts):
            return all(map(_is_empty_match, parts))
        case Choice(options=options):
            return all(map(_is_empty_match, options))
    return False


def _may_be_empty(parts: tuple[Tree, ...]) -> bool:
    return all(_follow(part, EMPTY, at_start=True).nullable for part in parts)


def _has_start(tree: Tree) -> bool:
    match tree:
        case Edge(at_start=at_start):
            return at_start
        case Seq(parts=children) | Choice(options=children):
            return any(map(_has_start, children))
        case Times(inner=inner) | Ahead(inner=inner):
            return _has_start(inner)
    return False


def _asserts(tree: Tree) -> bool:
    match tree:
        case Edge() | Ahead():
            return True
        case Seq(parts=children) | Choice(options=children):
            return any(map(_asserts, children))
        case Times(inner=inner):
            return _asserts(inner)
    return False
