"""Masks and dictated tokens that are kept, against computed ones: the same wherever output can be."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grammars.base import GrammarError, MaskRow
from grammars.llg import LlgGrammar
from grammars.llg_matcher import LlgMatcher
from grammars.lower import lower
from grammars.regular.ast import Regex
from grammars.rows import RowCache
from grammars.spec import Constraint, JsonOptions
from grammars.states import States
from grammars.tracking import Tracker
from grammars.vocab import Vocabulary
from tests.grammars.driver import mask_of
from tests.grammars.test_kinds import TAGS

CASES = Path(__file__).parents[1] / "cases"
SUITE = "json-schema-test-suite-draft2020-12.jsonl"
SCHEMAS = sorted(
    {
        json.dumps(json.loads(line)["schema"])
        for name in ("probes.jsonl", SUITE)
        for line in (CASES / name).read_text().splitlines()
    }
)
OTHERS = [
    Constraint(kind="regex", spec="(yes|no), [a-z ]+\\."),
    Constraint(kind="regex", spec="(?=.*\\d)[a-zé0-9]{3,12}"),
    Constraint.choice(["north", "northern", "日本", "日曜日"]),
    Constraint(kind="gbnf", spec='root ::= ("- " [^\\r\\n]+ "\\n")+'),
    Constraint(kind="structural_tag", spec=json.dumps(TAGS)),
    Constraint(kind="json_object"),
]


def _walk(constraint: Constraint, vocabulary: Vocabulary, rng: random.Random, *, walks: int) -> int:
    """Follow random legal tokens with and without kept masks; how often a kept one was met."""
    lowered = lower(constraint)
    rows = RowCache(1 << 26)
    plain, keeping = LlgGrammar(vocabulary, lowered), LlgGrammar(vocabulary, lowered, rows=rows)
    met = 0
    for _ in range(walks):
        computed, kept = plain.matcher(), keeping.matcher()
        for _ in range(24):
            before = rows.nbytes
            row = mask_of(computed, vocabulary)
            np.testing.assert_array_equal(mask_of(kept, vocabulary), row, err_msg=constraint.spec)
            engine = computed._engine()
            assert kept.forced_tokens() == engine.compute_ff_tokens()
            assert kept.is_complete == engine.is_accepting()
            assert kept.is_exhausted == (engine.is_accepting() and engine.is_stopped())
            assert kept._path[-1].point == computed._path[-1].point
            _check_alike(kept, row, vocabulary)
            met += rows.nbytes == before
            legal = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist()
            short = min(rng.choices(legal, k=6), key=lambda token: len(_text(vocabulary, token)))
            token = rng.choice([short, rng.choice(legal)])
            assert computed.accept(token)
            assert kept.accept(token)
            if computed.is_exhausted:
                break
    return met


def _check_alike(matcher: LlgMatcher, row: MaskRow, vocabulary: Vocabulary) -> None:
    """Tokens that are taken to be alike are allowed or not together."""
    place = matcher._path[-1]
    if place.most_counted:
        bits = np.unpackbits(row.view(np.uint8), count=vocabulary.width, bitorder="little")
        lengths = np.minimum(np.frombuffer(vocabulary.plain_lengths, np.uint8), place.most_counted)
        for length in range(1, lengths.max() + 1):
            assert len(np.unique(bits[lengths == length])) <= 1, (place.point, length)


def _text(vocabulary: Vocabulary, token: int) -> bytes:
    return vocabulary.token_bytes[token] if token < len(vocabulary.token_bytes) else b""


@pytest.mark.parametrize("part", range(8))
def test_a_place_says_all_that_its_mask_depends_on(part: int, vocabulary: Vocabulary) -> None:
    rng = random.Random(part)
    met = 0
    for schema in rng.sample(SCHEMAS, 12):
        try:
            options = JsonOptions(whitespace=rng.choice(["compact", "flexible"]))
            met += _walk(Constraint.json_schema(schema, options), vocabulary, rng, walks=4)
        except GrammarError:
            continue
    assert met > 50


@pytest.mark.parametrize("constraint", OTHERS, ids=lambda constraint: constraint.kind)
def test_so_it_does_under_other_constraints(constraint: Constraint, vocabulary: Vocabulary) -> None:
    assert _walk(constraint, vocabulary, random.Random(1), walks=6) > 5


def test_rows_are_bounded_and_the_least_recently_used_goes_first() -> None:
    cache = RowCache(max_bytes=3 * 16)
    keys = [object() for _ in range(4)]
    for number, key in enumerate(keys[:3]):
        cache.put(key, np.full(4, number, np.int32))
    assert cache.nbytes == 48
    assert _kept(cache, keys[0]) == [0] * 4
    cache.put(keys[3], np.full(4, 3, np.int32))
    assert cache.nbytes == 48
    assert [_kept(cache, key) for key in keys] == [[0] * 4, None, [2] * 4, [3] * 4]
    cache.put(keys[3], np.full(4, 7, np.int32))
    assert (cache.nbytes, _kept(cache, keys[3])) == (48, [7] * 4)


def test_a_kept_row_is_a_copy() -> None:
    cache = RowCache(max_bytes=1 << 10)
    row = np.full(4, 5, np.int32)
    cache.put("key", row)
    row[:] = 0
    assert _kept(cache, "key") == [5] * 4


def _kept(cache: RowCache, key: object) -> list[int] | None:
    row = cache.get(key)
    return None if row is None else row.tolist()


def test_ids_that_are_no_tokens_are_refused(vocabulary: Vocabulary) -> None:
    """Also where tokens are alike, and a token of each length was allowed before."""
    lowered = lower(Constraint.json_schema({"type": "string"}))
    grammar = LlgGrammar(vocabulary, lowered, rows=RowCache(1 << 20))
    matcher = grammar.matcher()
    for token_id in vocabulary.encode('"a bc def'):
        mask_of(matcher, vocabulary)
        assert matcher.accept(token_id)
    count = matcher.num_tokens
    for token_id in (*range(-8, 0), *range(vocabulary.width, vocabulary.width + 8), 1 << 40):
        assert not matcher.accept(token_id)
        assert matcher.accept_within(token_id, 100) is None
    assert matcher.num_tokens == count


class Counting(Tracker[int]):
    """Counts bytes; counts too how often it was asked."""

    start = 0

    def __init__(self) -> None:
        self.asked = 0

    def advance(self, point: int, data: bytes, *, ends: bool = False) -> int:
        self.asked += 1
        return point + len(data)

    def size(self, point: int) -> float:
        return max(0, 9 - point)

    def close(self, point: int) -> bytes:
        return b"x" * max(0, 9 - point)

    def forbid(self, row: Any, point: int) -> None:
        pass

    def most_counted(self, point: int) -> int:
        return 0

    def may_end(self, point: int) -> bool:
        return True

    def order(self, point: int) -> tuple[int, int]:
        return point, 0

    def languages(self, point: int) -> tuple[Regex, ...]:
        return ()


def test_equal_places_are_one_and_are_asked_for_once() -> None:
    tracker = Counting()
    states = States(tracker)
    by_one = states.after(states.after(states.start, b"a"), b"b")
    assert by_one is states.after(states.start, b"ab")
    assert (by_one.point, by_one.size) == (2, 7)
    asked = tracker.asked
    for _ in range(3):
        assert states.after(states.start, b"ab") is by_one
    assert tracker.asked == asked


def test_places_are_bounded_and_go_on_where_they_were_forgotten() -> None:
    states = States(Counting())
    state = states.start
    for count in range(1, 5000):
        state = states.after(state, b"a")
        assert state.point == count
    assert len(states._known) <= 1024
    assert len(states._steps) <= 8192
