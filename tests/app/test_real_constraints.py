"""Every kind of constraint on the shipped model, over HTTP, sampled: values against oracles of their own."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from typing import Any

import jsonschema
import pytest

from engine.config import Config
from engine.load import load_engine
from tests.app.harness import Served, events, serving_engine
from tests.app.test_structural_tags import LEGACY, WEATHER, check
from tests.fakes import assert_quiet

SEEDS = range(4)
COLOURS = ["red", "reddish brown", "blue", "grün"]
DATE = r"(19|20)[0-9]{2}-(0[1-9]|1[0-2])"
SUM_GBNF = 'root ::= term (" + " term){1,3}\nterm ::= [1-9] [0-9]{0,2}'
SUM_LARK = 'start: TERM (" + " TERM)~1..3\nTERM: /[1-9][0-9]{0,2}/'
SUM = r"[1-9][0-9]{0,2}( \+ [1-9][0-9]{0,2}){1,3}"

Oracle = Callable[[str], bool]


def matches(pattern: str) -> Oracle:
    return lambda text: re.fullmatch(pattern, text) is not None


def is_object(text: str) -> bool:
    return isinstance(json.loads(text), dict)


def is_weather(text: str) -> bool:
    jsonschema.validate(json.loads(text), WEATHER)
    return True


def schema_format(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "it", "schema": schema}}


CASES: list[tuple[dict[str, Any], Oracle]] = [
    ({"structured_outputs": {"choice": COLOURS}}, COLOURS.__contains__),
    ({"guided_choice": COLOURS}, COLOURS.__contains__),
    ({"structured_outputs": {"regex": DATE}}, matches(DATE)),
    ({"guided_regex": DATE}, matches(DATE)),
    ({"regex": DATE}, matches(DATE)),
    ({"structured_outputs": {"grammar": SUM_GBNF}}, matches(SUM)),
    ({"structured_outputs": {"grammar": SUM_LARK}}, matches(SUM)),
    ({"guided_grammar": SUM_LARK}, matches(SUM)),
    ({"ebnf": SUM_GBNF}, matches(SUM)),
    ({"grammar": SUM_GBNF}, matches(SUM)),
    ({"response_format": {"type": "json_object"}}, is_object),
    ({"structured_outputs": {"json_object": True}}, is_object),
    ({"response_format": schema_format(WEATHER)}, is_weather),
    ({"structured_outputs": {"json": WEATHER}}, is_weather),
    ({"guided_json": json.dumps(WEATHER)}, is_weather),
    ({"json_schema": json.dumps(WEATHER)}, is_weather),
]


@pytest.fixture(scope="module")
async def real() -> AsyncIterator[Served]:
    config = Config(dtype="float32", kv_memory=256, port=0, max_context=2048, served_model_name="fake")
    async with serving_engine(load_engine(config, lambda stage, fraction: None)) as served:
        served.http.timeout = 120
        yield served
        assert_quiet(served.engine)


@pytest.mark.parametrize(("fields", "holds"), CASES)
async def test_a_constraint_holds(real: Served, fields: dict[str, Any], holds: Oracle) -> None:
    asked = {**fields, "temperature": 1.0, "max_tokens": 60}
    answers = await asyncio.gather(
        *(real.chat("Tell me about the weather in May.", **asked, seed=seed) for seed in SEEDS),
        *(real.complete("The weather in May:", **asked, seed=seed) for seed in SEEDS),
        real.chat("Tell me about the weather in May.", **asked, seed=0, stream=True),
    )
    *whole, streamed = answers
    for answer in whole:
        assert answer.status_code == 200, answer.text
    choices = [answer.json()["choices"][0] for answer in whole]
    texts = [choice["message"]["content"] if "message" in choice else choice["text"] for choice in choices]
    deltas = [choice["delta"] for chunk in events(streamed.text) for choice in chunk["choices"]]
    texts.append("".join(delta.get("content", "") for delta in deltas))
    for text in texts:
        assert holds(text), text
    assert len(set(texts)) > 1
    assert texts[-1] == texts[0]


@pytest.mark.parametrize("field", ["response_format", "structural_tag"])
async def test_a_structural_tag_holds(real: Served, field: str) -> None:
    """The prompt shows tags, and the model goes on with some."""
    tag = {"type": "structural_tag", **LEGACY}
    lines = [f'{city}: <call=weather>{{"city":"{city}"}}</call>\n' for city in ("Bern", "Rome", "Lima")]
    fields: dict[str, Any] = {field: tag, "max_tokens": 48}
    *answers, bound, plain = await asyncio.gather(
        *(real.complete(f"{''.join(lines)}Oslo:", **fields, temperature=1.0, seed=seed) for seed in SEEDS),
        real.complete("The sky is", **fields, temperature=0.0),
        real.complete("The sky is", max_tokens=48, temperature=0.0),
    )
    texts = [answer.json()["choices"][0]["text"] for answer in answers]
    assert any("<call=" in text for text in texts)
    for text in texts:
        assert check(text) == re.findall(r"<call=(\w+)>", text)
    assert bound.json()["choices"][0]["text"] == plain.json()["choices"][0]["text"]
