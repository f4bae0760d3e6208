"""Random schemas and instances: our verdict is that of an independent validator."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from grammars.base import GrammarError
from grammars.llg import LlgGrammar
from grammars.lower import lower
from grammars.spec import Constraint, JsonOptions
from grammars.vocab import Vocabulary
from tests.grammars.driver import reads
from tests.grammars.random_schemas import Schemas, orders

SPELLING = JsonOptions(decimal_integers=True)


def _compile(schema: Any, vocabulary: Vocabulary) -> LlgGrammar | GrammarError:
    try:
        return LlgGrammar(vocabulary, lower(Constraint.json_schema(schema, SPELLING)))
    except GrammarError as error:
        return error


@pytest.mark.parametrize("seed", range(8))
def test_verdicts_are_those_of_a_validator(seed: int, vocabulary: Vocabulary) -> None:
    schemas = Schemas(seed)
    compiled = 0
    for _ in range(20):
        schema = schemas.document()
        validator = jsonschema.Draft202012Validator(schema)
        compilation = _compile(schema, vocabulary)
        if isinstance(compilation, GrammarError):
            # Refused by keyword, or because nothing is valid.
            empty = compilation.keyword is None and "no value" in compilation.message
            valid = any(validator.is_valid(schemas.instance()) for _ in range(30))
            assert not (empty and valid), schema
            continue
        compiled += 1
        for _ in range(12):
            instance = schemas.instance()
            texts = (json.dumps(ordered, separators=(",", ":")) for ordered in orders(instance))
            # Properties have one order; that is not what is compared here.
            accepted = any(reads(compilation, vocabulary, text) for text in texts)
            assert accepted == validator.is_valid(instance), (schema, instance)
    assert compiled >= 12
