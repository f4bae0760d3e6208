"""Schemas as people write them: function calls, configuration files, cluster resources, articles, events."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from grammars.llg import LlgGrammar
from grammars.lower import lower
from grammars.spec import Constraint
from grammars.vocab import Vocabulary
from tests.grammars.driver import reads

CASES = Path(__file__).parents[1] / "cases" / "real-world-schemas.jsonl"


def _cases() -> list[dict[str, Any]]:
    return [json.loads(line) for line in CASES.read_text().splitlines()]


@pytest.mark.parametrize("case", _cases(), ids=lambda case: case["name"])
def test_every_instance_gets_the_verdict_of_a_validator(case: dict[str, Any], vocabulary: Vocabulary) -> None:
    schema = case["schema"]
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    validator = kind(schema, format_checker=kind.FORMAT_CHECKER)
    assert all(map(validator.is_valid, case["valid"]))
    assert not any(map(validator.is_valid, case["invalid"]))
    grammar = LlgGrammar(vocabulary, lower(Constraint.json_schema(schema)))

    def accepted(instance: Any) -> bool:
        return reads(grammar, vocabulary, json.dumps(instance, ensure_ascii=False, separators=(",", ":")))

    assert [instance for instance in case["valid"] if not accepted(instance)] == []
    assert [instance for instance in case["invalid"] if accepted(instance)] == []
