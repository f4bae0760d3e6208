"""What is refused as a whole is refused for a part, where there is one without which it would be taken."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from grammars import worker
from grammars.base import GrammarError
from grammars.schema import trials
from grammars.spec import Constraint
from grammars.vocab import Vocabulary

NONE = "no value satisfies the schema"
EMPTY = {"type": "integer", "minimum": 5, "maximum": 3}
MANY = {f"p{number}": {"type": "integer"} for number in range(700)}


@pytest.fixture(autouse=True)
def by_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of trials is all that ends a search, not the time it takes."""
    monkeypatch.setattr(worker, "_QUICK_S", math.inf)
    monkeypatch.setattr(trials, "_MOST_S", math.inf)
    monkeypatch.setattr(trials, "_MOST_TRIALS", 24)


@pytest.mark.parametrize(
    ("schema", "message", "pointer", "keyword"),
    [
        (EMPTY, NONE, "/maximum", "maximum"),
        (False, NONE, "", None),
        ({"allOf": [True, False]}, NONE, "/allOf/1", "allOf"),
        ({"type": "string", "enum": []}, NONE, "/enum", "enum"),
        (
            {"type": "object", "properties": {"b": {"not": True}, "a/b": EMPTY}, "required": ["a/b"]},
            NONE,
            "/properties/a~1b/maximum",
            "maximum",
        ),
        (
            {"$defs": {"a": EMPTY}, "type": "array", "items": {"$ref": "#/$defs/a"}, "minItems": 1},
            NONE,
            "/$defs/a/maximum",
            "maximum",
        ),
        (
            {"$defs": {"a": {"$anchor": "a", **EMPTY}}, "allOf": [{"$ref": "#a"}]},
            NONE,
            "/allOf/0/$ref",
            "$ref",
        ),
        # Two parts, of which neither alone is to blame.
        (
            {"type": "array", "prefixItems": [EMPTY, EMPTY], "minItems": 2},
            NONE,
            "/prefixItems",
            "prefixItems",
        ),
        # Without any properties there would be no place for what is required.
        (
            {
                "type": "object",
                "properties": {"b": {"type": "null"}, "a": {"$ref": "#/$defs/a"}},
                "required": ["a", "b"],
                "additionalProperties": False,
                "$defs": {"a": EMPTY},
            },
            NONE,
            "/$defs/a/maximum",
            "maximum",
        ),
        ({"type": "array", "items": {"type": "null"}, "minItems": 9000}, "bytes", "/minItems", "minItems"),
        (
            {"$defs": {"many": {"type": "object", "properties": MANY, "additionalProperties": False}}}
            | {"allOf": [{"$ref": "#/$defs/many"}]},
            "too much may come next",
            "/$defs/many/properties",
            "properties",
        ),
    ],
)
def test_a_refusal_names_the_smallest_part_that_it_is_for(
    schema: Any, message: str, pointer: str, keyword: str | None, vocabulary: Vocabulary
) -> None:
    with pytest.raises(GrammarError, match=message) as caught:
        worker.check(Constraint(kind="json_schema", spec=json.dumps(schema)), vocabulary)
    assert (caught.value.pointer, caught.value.keyword) == (pointer, keyword)
