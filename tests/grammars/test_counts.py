"""Bounds on how many characters, items or properties there are, however large."""

from __future__ import annotations

import json
from typing import Any

import pytest

from grammars.base import GrammarError
from grammars.compiler import Compiler
from grammars.regular.ast import length
from grammars.schema.endings import FreshWords
from grammars.spec import Constraint
from grammars.vocab import Vocabulary
from tests.grammars.driver import accepts

PARTS: dict[str, dict[str, Any]] = {
    "Length": {"type": "string"},
    "Items": {"type": "array"},
    "Properties": {"type": "object"},
    "Contains": {"type": "array", "contains": {"type": "null"}},
}
VALUES = {"Length": "some", "Items": [1, 2], "Properties": {"a": 1}, "Contains": [None]}


@pytest.mark.parametrize("most", [2**31 - 1, 2**32 - 1, 2**53 - 1, 10**30])
@pytest.mark.parametrize("of", PARTS)
async def test_a_bound_that_no_text_comes_to(
    of: str, most: int, compiler: Compiler, vocabulary: Vocabulary
) -> None:
    """As some libraries write for what has none."""
    grammar = await compiler.compile(Constraint.json_schema({**PARTS[of], f"max{of}": most}))
    assert accepts(grammar, vocabulary, json.dumps(VALUES[of], separators=(",", ":")))


@pytest.mark.parametrize("of", PARTS)
@pytest.mark.parametrize("least", [10**7, 10**30])
async def test_more_than_anybody_could_write(of: str, least: int, compiler: Compiler) -> None:
    with pytest.raises(GrammarError) as refusal:
        await compiler.compile(Constraint.json_schema({**PARTS[of], f"min{of}": least}))
    keyword = "contains" if of == "Contains" else f"min{of}"
    assert (refusal.value.keyword, refusal.value.pointer) == (keyword, f"/{keyword}")
    assert "process" not in refusal.value.message


async def test_many_names_that_nothing_else_is_asked_of(compiler: Compiler) -> None:
    """Each differs from all before it; they are listed, not searched for."""
    grammar = await compiler.compile(Constraint.json_schema({"type": "object", "minProperties": 300}))
    matcher = grammar.matcher()
    close = matcher.shortest_close()
    assert close is not None
    assert len(close) == grammar.min_tokens
    assert all(map(matcher.accept, close))
    assert matcher.is_complete


@pytest.mark.parametrize(("low", "high", "most"), [(0, 1, 150), (1, 1, 150), (0, None, 1000), (9, 9, 1000)])
def test_fresh_words_of_a_length(low: int, high: int | None, most: int) -> None:
    fresh = FreshWords(length(low, high))
    seen: list[str] = []
    while len(seen) < most and (word := fresh.next(seen.__contains__)) is not None:
        seen.append(word)
    assert len(set(seen)) == len(seen) == most
    written = [len(word.encode()) for word in seen]
    assert written == sorted(written)
    assert all(low <= len(word) and (high is None or len(word) <= high) for word in seen)
