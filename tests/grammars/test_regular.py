"""Regular languages: against Python's `re`, and against the engine that reads what we print."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher

from grammars.regular.ast import (
    ANYTHING,
    EMPTY,
    NOTHING,
    Regex,
    alt,
    complement,
    concat,
    intersect,
    length,
    literal,
    repeat,
)
from grammars.regular.classes import COMMON
from grammars.regular.derivative import TooManyStatesError, derive_text, matches
from grammars.regular.growth import grows
from grammars.regular.lark import PLAIN, grammar
from grammars.regular.pattern_syntax import PatternError
from grammars.regular.patterns import full_language, search_language
from grammars.regular.questions import (
    count_texts,
    has_all_beginnings,
    has_more_than,
    is_empty,
    is_prolific,
    shortest,
    words,
)
from grammars.regular.texts import one_of
from grammars.vocab import Vocabulary

TEXTS = st.text(alphabet="ab1x y\n-_é", max_size=8)

PATTERNS = [
    "ab",
    "^ab",
    "ab$",
    "^[a-b]{2,4}$",
    "^$|(^(?:\\S+\\s+){0,3}\\S+$)",
    "^(?!ab)[abx]+$",
    "^(?=.*\\d)(?=.*[ab]).{2,6}$",
    "^\\S(|(.|\\n)*\\S)$",
    "[^a-b]",
    "x(?=y)",
    "x(?!y)",
    "(^a|b$)",
    "^.+$",
    "a{0}b|a{2,}",
    "^[\\w-]+$",
    "(?:a|b)*?1",
    "^(?<n>a)(?P<m>b)?$",
    "^a|b$|^$",
    "^((?!ab).)*$",
    "^x(?:(?!1)(?=[ab])[abx]){1,3}$|b",
    "((?!a).)*",
    "",
]


@pytest.mark.parametrize("pattern", PATTERNS)
@settings(max_examples=60, deadline=None)
@given(text=TEXTS)
def test_a_pattern_is_found_where_re_finds_it(pattern: str, text: str) -> None:
    python = pattern.replace("$", r"\Z").replace("(?<n>", "(?P<n>")
    assert matches(search_language(pattern), text) == bool(re.search(python, text, re.ASCII))


@pytest.mark.parametrize(
    ("pattern", "complaint"),
    [
        ("(a", "does not end"),
        ("a)", "unexpected"),
        ("[a", "unexpected end"),
        ("*a", "nothing to repeat"),
        ("^+a", "nothing to repeat"),
        ("a{3,2}", "out of order"),
        ("[b-a]", "out of order"),
        (r"\Z", "not known"),
        (r"(a)\1", "not regular"),
        (r"\bword\b", "not supported"),
        ("(?<=a)b", "lookbehind"),
        ("(?i)a", "not supported"),
        ("a*^b", "may be empty"),
        ("(a$)+", "inside a repetition"),
        (r"\p{Nonsense}", "not known"),
        ("\0", "NUL"),
        ("(" * 200 + ")" * 200, "nested deeper"),
        ("a{1,1000000}", "repetitions"),
    ],
)
def test_what_is_not_a_pattern_is_refused(pattern: str, complaint: str) -> None:
    with pytest.raises(PatternError, match=complaint):
        search_language(pattern)


def test_ecma_classes_are_ascii_and_common_ones_are_not() -> None:
    assert not matches(full_language(r"\w"), "é")
    assert matches(full_language(r"\w", COMMON), "é")
    assert matches(full_language(r"\W"), "é")
    assert not matches(full_language(r"\W", COMMON), "é")
    for dialect in (r"\d",):
        assert not matches(full_language(dialect, COMMON), "٣")
    assert matches(full_language(r"\p{Lu}\p{Letter}"), "Éa")


def _regexes() -> st.SearchStrategy[Regex]:
    leaves = st.sampled_from([EMPTY, literal("a"), literal("b"), literal("ab"), ANYTHING, length(0, 2)])

    def grow(inner: st.SearchStrategy[Regex]) -> st.SearchStrategy[Regex]:
        pairs = st.tuples(inner, inner)
        return st.one_of(
            pairs.map(alt),
            pairs.map(intersect),
            pairs.map(concat),
            inner.map(complement),
            st.builds(repeat, inner, st.integers(0, 2), st.sampled_from([2, 3, None])),
        )

    return st.recursive(leaves, grow, max_leaves=6)


@settings(max_examples=150, deadline=None)
@given(left=_regexes(), right=_regexes(), text=st.text(alphabet="abc", max_size=4))
def test_the_algebra_is_boolean(left: Regex, right: Regex, text: str) -> None:
    in_left, in_right = matches(left, text), matches(right, text)
    assert matches(alt((left, right)), text) == (in_left or in_right)
    assert matches(intersect((left, right)), text) == (in_left and in_right)
    assert matches(complement(left), text) != in_left


@settings(max_examples=150, deadline=None)
@given(regex=_regexes())
def test_a_shortest_word_is_one_and_there_is_no_shorter(regex: Regex) -> None:
    word = shortest(regex)
    short = [a + b + c for a in ("", "a", "b", "c") for b in ("", "a", "b") for c in ("", "a", "b")]
    found = [text for text in short if matches(regex, text)]
    if word is None:
        assert is_empty(regex)
        assert not found
    else:
        assert matches(regex, word)
        assert all(len(word) <= len(text) for text in found)


@settings(max_examples=60, deadline=None)
@given(regex=_regexes(), texts=st.lists(st.text(alphabet="abc\n", max_size=4), min_size=4, max_size=4))
def test_the_engine_reads_what_we_print(vocabulary: Vocabulary, regex: Regex, texts: list[str]) -> None:
    if regex == NOTHING or is_empty(regex) or is_empty(intersect((regex, length(1, None)))):
        return
    matcher = LLMatcher(vocabulary.tokenizer, LLMatcher.grammar_from_lark(grammar(regex)), log_level=0)
    assert not matcher.is_error()
    for text in texts:
        matcher.reset()
        tokens = vocabulary.encode(text)
        accepted = matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()
        assert accepted == matches(regex, text), (PLAIN.terminal(regex), text)


def test_listing_the_words_of_a_small_language() -> None:
    assert set(words(full_language("(a|b)[01]"), 10) or ()) == {"a0", "a1", "b0", "b1"}
    assert words(full_language("(a|b)[01]"), 3) is None
    assert words(full_language("a*"), 100) is None
    assert words(full_language("[A-Z]{3}"), 100) is None


@pytest.mark.parametrize(
    ("pattern", "count"),
    [("(a|b)[01]", 4), ("a{0,300}", 301), ("(a|bc){9}", 512), ("x[^\\d\\D]", 0), ("(?!a$)[a-c]|d{2000}", 3)],
)
def test_counting_the_texts_of_a_language(pattern: str, count: int) -> None:
    regex = full_language(pattern)
    assert count_texts(regex, 10**4) == count
    assert not has_more_than(regex, count)
    assert count == 0 or has_more_than(regex, count - 1)
    assert has_more_than(alt((regex, full_language("ab*c"))), 10**6)


@settings(max_examples=60, deadline=None)
@given(regex=_regexes())
def test_a_language_has_as_many_texts_as_are_listed(regex: Regex) -> None:
    listed = words(regex, 50)
    assert has_more_than(regex, 50) == (listed is None)
    if listed:
        assert has_more_than(regex, len(set(listed)) - 1)


@pytest.mark.parametrize(
    ("pattern", "closed"),
    [
        (" ?", True),
        ("(\\n *)?", True),
        ("[ \\t]{0,4}", True),
        (" {2}|", False),
        (" +", False),
        ("(  )*", False),
    ],
)
def test_languages_with_every_beginning_of_their_texts(pattern: str, *, closed: bool) -> None:
    assert has_all_beginnings(full_language(pattern)) == closed


@pytest.mark.parametrize(
    ("pattern", "prolific"),
    [("a*", True), ("x_.*", True), ("[a-z]{3}", False), ("a|b*", False), ("(?!ab$)[a-z]+", True)],
)
def test_prolific_languages_never_run_out(pattern: str, *, prolific: bool) -> None:
    assert is_prolific(full_language(pattern)) == prolific


@settings(max_examples=100, deadline=None)
@given(texts=st.lists(st.text(alphabet="ab", max_size=24), min_size=1, max_size=12), other=TEXTS)
def test_a_list_of_texts_is_these_texts(texts: list[str], other: str) -> None:
    language = one_of(texts)
    assert sorted(words(language, len(texts)) or []) == sorted(set(texts))
    assert matches(language, other) == (other in texts)


def test_texts_share_their_beginnings() -> None:
    endings = alt([literal("1"), concat([literal("2"), alt([EMPTY, literal("3")])])])
    assert one_of(["item 1", "item 2", "item 23"]) == concat([literal("item "), endings])
    assert shortest(one_of(["a" * n for n in range(900, 0, -1)])) == "a"


_IN_EACH_OTHER = repeat(concat((repeat(literal("a"), 1, 50), repeat(literal("b"), 0, 1))), 1, 50)
"""After a few hundred a there are as many ways in which they may have been counted as there are pairs."""


def test_what_grows_beyond_use_is_told_and_left() -> None:
    assert grows(_IN_EACH_OTHER)
    with pytest.raises(TooManyStatesError):
        derive_text(_IN_EACH_OTHER, "a" * 300)
    with pytest.raises(PatternError, match="counts repetitions"):
        full_language("((a{1,50}b?){1,50}c?){1,20}")
    with pytest.raises(PatternError, match="counts repetitions"):
        search_language("^(a{1,50}b?){1,50}$")


@pytest.mark.parametrize(
    "pattern",
    [
        "[a-z]{1,20000}",
        "(a|b)*a(a|b){200}",
        "([A-Z][a-z]{1,15}( [a-z]{1,15}){2,20}\\. ?){1,10}",
        "[a-z0-9._%+-]{1,64}@([a-z0-9-]{1,63}\\.){1,8}[a-z]{2,63}",
        "(?=.*[a-z])(?=.*[A-Z])(?=.*\\d)[A-Za-z\\d]{8,64}",
        "(" + "|".join(f"word {n}" for n in range(600)) + "){1,9}",
    ],
)
def test_what_is_long_or_counted_once_does_not_grow(pattern: str) -> None:
    assert not grows(full_language(pattern))


def test_the_work_of_a_question_is_bounded() -> None:
    """What is asked is left open where states are too large, however few they are."""
    both = repeat(concat((repeat(_IN_EACH_OTHER, 0, 1), literal("x"))), 1, 9)
    with pytest.raises(TooManyStatesError):
        words(intersect((both, repeat(alt((literal("a"), literal("x"))), 190, 199))), 60)
