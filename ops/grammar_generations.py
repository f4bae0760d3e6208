"""Answers of the embedded model under schemas, judged by a validator that is not ours."""

from __future__ import annotations

import json
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any

import jsonschema

from engine import LLM, SamplingParams
from engine.errors import InvalidRequestError
from grammars.base import GrammarError
from grammars.spec import Constraint

_CLIENTS = 8
_BUDGET = 400
_PROMPT = "An example of a JSON document:\n\n"


def generate(sets: dict[str, list[str]], count: int) -> dict[str, str]:
    """For each set what share of answers to `count` of its schemas, drawn at random, is valid.

    Schemas that are refused are passed over, and so are those that the validator cannot apply.
    """
    if count == 0:
        return {}
    results = {}
    with LLM() as llm, ThreadPoolExecutor(_CLIENTS) as clients:
        for name, schemas in sets.items():
            drawn = random.Random(name).sample(schemas, min(count, len(schemas)))
            verdicts = list(clients.map(lambda schema: _judge(llm, schema), drawn))
            judged = [verdict for verdict in verdicts if verdict is not None]
            results[name] = f"{sum(judged)} of {len(judged)}"
    return results


def _judge(llm: LLM, schema: str) -> bool | None:
    """Whether an answer is valid; None: there is none, or it cannot be told."""
    params = SamplingParams(max_tokens=_BUDGET, temperature=1.0, seed=len(schema))
    try:
        (output,) = llm.generate(_PROMPT, params, output_type=Constraint.json_schema(schema))
    except (GrammarError, InvalidRequestError):
        return None
    except RuntimeError as error:
        print(f"failed under {schema}: {error}", file=sys.stderr, flush=True)
        return False
    valid = is_valid(schema, output.text)
    if valid is False:
        print(f"not valid under {schema}: {output.text!r}", file=sys.stderr, flush=True)
    return valid


def is_valid(schema: str, text: str) -> bool | None:
    """What `jsonschema` says of a text, numbers taken exactly; None where it cannot apply the schema."""
    read: Any = json.loads(schema, parse_float=Decimal)
    kind = jsonschema.validators.validator_for(read, default=jsonschema.Draft202012Validator)
    try:
        instance = json.loads(text, parse_float=Decimal, object_pairs_hook=_without_repeats)
    except ValueError:
        return False
    try:
        return bool(kind(read, format_checker=kind.FORMAT_CHECKER).is_valid(instance))
    except Exception as error:  # noqa: BLE001 (regular expressions it cannot read, references, ...)
        print(f"the validator fails on {schema}: {error}", file=sys.stderr, flush=True)
        return None


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("a key comes twice")
    return value
