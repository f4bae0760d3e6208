"""Every schema with right verdicts that we have: nothing wrong gets through, and most is exactly right."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from grammars import worker
from grammars.base import GrammarError
from grammars.llg import LlgGrammar
from grammars.lower import lower
from grammars.schema import trials
from grammars.spec import Constraint, JsonOptions
from grammars.vocab import Vocabulary
from tests.grammars.driver import accepts
from tests.grammars.order import as_declared

CASES = Path(__file__).parents[1] / "cases"
ANY_SPELLING = JsonOptions(whitespace="flexible", decimal_integers=True)

# The draft of a suite, and how many of its groups are fully right (of 321 and 461); none may be fewer.
SUITES = {
    "json-schema-test-suite-draft7": ("http://json-schema.org/draft-07/schema#", 294),
    "json-schema-test-suite-draft2020-12": ("https://json-schema.org/draft/2020-12/schema", 401),
}
UNSATISFIABLE = {
    "misc.invalid_schema_neg_len",
    "misc.invalid_type_name",
    "misc.unsat",
    "ref.remote",
}
REFUSED = {
    "NUL in pattern": "NUL",
    "allOf 2^12 intersect": "combinations",
    "anyOf self ref": "leads back to itself",
    "minItems 5000 of objects": "shortest value has 45001 bytes",
    "ref fanout 2^20": "shortest value has",
    "nested depth 200": "nested deeper",
    "nested depth 400": "nested deeper",
    "quantifier on nothing": "nothing to repeat",
    "self ref #": "leads back to itself",
}


def _read(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (CASES / f"{name}.jsonl").read_text().splitlines()]


@pytest.fixture(autouse=True)
def by_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of trials is all that ends the search for what is at fault, not the time it takes."""
    monkeypatch.setattr(worker, "_QUICK_S", math.inf)
    monkeypatch.setattr(trials, "_MOST_S", math.inf)


def _check_place(schema: Any, vocabulary: Vocabulary) -> None:
    """Whether the refusal of a schema leads to a part of it by a keyword that is there."""
    with pytest.raises(GrammarError) as refusal:
        worker.check(Constraint.json_schema(schema, ANY_SPELLING), vocabulary)
    error = refusal.value
    if not isinstance(schema, dict):
        # Nothing is in it that could be named.
        assert (error.pointer, error.keyword) == ("", None)
        return
    keys = set[str]()
    value: Any = schema
    for token in error.pointer.split("/")[1:]:
        key = token.replace("~1", "/").replace("~0", "~")
        keys |= {key} if isinstance(value, dict) else set()
        value = value[int(key) if isinstance(value, list) else key]
    assert error.keyword in keys, error.pointer


def _compile(schema: Any, options: JsonOptions, vocabulary: Vocabulary) -> LlgGrammar:
    return LlgGrammar(vocabulary, lower(Constraint.json_schema(schema, options)))


@pytest.mark.parametrize("probe", _read("probes"), ids=lambda probe: probe["name"])
def test_probe(probe: dict[str, Any], vocabulary: Vocabulary) -> None:
    if probe["name"] in UNSATISFIABLE:
        with pytest.raises(GrammarError):
            _compile(probe["schema"], ANY_SPELLING, vocabulary)
        _check_place(probe["schema"], vocabulary)
        return
    grammar = _compile(probe["schema"], ANY_SPELLING, vocabulary)
    wrong = [text for text in probe["valid"] if not accepts(grammar, vocabulary, text)]
    wrong += [text for text in probe["invalid"] if accepts(grammar, vocabulary, text)]
    assert not wrong


def _verdicts(
    group: dict[str, Any], draft: str, vocabulary: Vocabulary
) -> Iterator[tuple[bool, bool | None]]:
    """For each test of a group whether it is valid, and whether the grammar accepts it (None: refused)."""
    schema = group["schema"]
    if isinstance(schema, dict):
        schema = {"$schema": draft, **schema}
    try:
        grammar = _compile(schema, ANY_SPELLING, vocabulary)
    except GrammarError:
        _check_place(schema, vocabulary)
        yield from ((test["valid"], None) for test in group["tests"])
        return
    for test in group["tests"]:
        text = json.dumps(as_declared(test["data"], schema), ensure_ascii=False)
        yield test["valid"], accepts(grammar, vocabulary, text)


@pytest.mark.parametrize("name", SUITES)
def test_suite(name: str, vocabulary: Vocabulary) -> None:
    draft, least = SUITES[name]
    outcomes: Counter[str] = Counter()
    let_through = []
    for group in _read(name):
        verdicts = list(_verdicts(group, draft, vocabulary))
        if any(accepted and not valid for valid, accepted in verdicts):
            let_through.append(group["id"])
        # A refusal is right where there is nothing to accept.
        outcomes["right"] += all(bool(accepted) == valid for valid, accepted in verdicts)
    assert not let_through
    assert outcomes["right"] >= least


@pytest.mark.parametrize("case", _read("hostile"), ids=lambda case: case["name"])
async def test_hostile_schema_ends_within_its_limits(
    case: dict[str, Any], compiler: Any, vocabulary: Vocabulary
) -> None:
    constraint = Constraint.json_schema(case["schema"])
    if case["name"] in REFUSED:
        with pytest.raises(GrammarError, match=REFUSED[case["name"]]):
            await compiler.compile(constraint)
        _check_place(case["schema"], vocabulary)
    else:
        assert (await compiler.compile(constraint)).matcher().num_tokens == 0
